"""Counter of the bytes that a step moves (:class:`Traffic`)."""

from dataclasses import dataclass, field


@dataclass
class Traffic:
    """Bytes that a rank has moved since the owner last called :meth:`clear`.

    A message counts as one read by the sender and one write by the receiver, without MPI's internal copies. MPI's own
    reductions count with their lower bound, for an allreduce 2 (n - 1) / n of the vector per rank (Patarasuk and Yuan
    2009).

    Attributes
    ----------
    remote : int
        Bytes of gradients and their sums that were read from another domain of the node's memory, or written there.
    sent, received : int
        Bytes of those read and written that messages pass on, not this rank's own code.
    """

    read: int = 0
    written: int = 0
    sent: int = 0
    remote: int = 0
    received: int = field(default=0, compare=False)

    def clear(self) -> None:
        self.read = self.written = self.sent = self.remote = self.received = 0

    def send(self, n_bytes: int) -> None:
        self.sent += n_bytes
        self.read += n_bytes

    def receive(self, n_bytes: int) -> None:
        self.written += n_bytes
        self.received += n_bytes

    def transfer(self, n_bytes: int) -> None:
        """Count both ends of a one-sided transfer, whose target does not count it."""
        self.send(n_bytes)
        self.receive(n_bytes)

    def sum(self, n_bytes: int, n_rows: int) -> None:
        """Count a sum of ``n_rows`` rows of ``n_bytes`` each into a separate buffer."""
        self.read += n_rows * n_bytes
        self.written += n_bytes

    def allreduce(self, n_bytes: int, n_ranks: int) -> None:
        """Count MPI's own allreduce of ``n_bytes`` among ``n_ranks`` ranks."""
        n_moved = 2 * n_bytes * (n_ranks - 1) // n_ranks
        self.send(n_moved)
        self.receive(n_moved)

    def broadcast(self, n_bytes: int, n_ranks: int, is_root: bool) -> None:
        """Count a broadcast of ``n_bytes`` among ``n_ranks`` ranks."""
        if is_root:
            self.send((n_ranks - 1) * n_bytes)
        else:
            self.receive(n_bytes)
