"""Current activity of a node's ranks in shared memory (:class:`Pulse`): one store per change, and no call."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns

import numpy as np

LINE_BYTES = 128  # per rank, so that no two ranks share a cache line
IDLE, COMPUTING, ARRIVED, WAITING_REMOTE = (
    0,
    1,
    2,
    3,
)  # outside a step; computes it; arrived at its exchange; waits for other nodes
KINDS = 4


class Pulse:
    """Two int64 words for each rank of a node: its activity and step, and the start of that activity.

    Parameters
    ----------
    memory : ndarray of uint8
        Shared by the node's ranks, at least :func:`size` bytes, 8-byte aligned.
    me : int
        This rank's number on the node.
    """

    def __init__(self, memory: np.ndarray, n_ranks: int, me: int):
        self.words = memory[: size(n_ranks)].view(np.int64).reshape(n_ranks, -1)
        self.me, self.mine = me, self.words[me]

    def tell(self, does: int, step: int = 0) -> None:
        """Set this rank's activity from now on; ``step`` counts over the entire run."""
        self.mine[1] = perf_counter_ns()
        self.mine[0] = step * KINDS + does

    @contextmanager
    def arrived(self) -> Iterator[None]:
        """Mark this rank as one that waits for others within its step, and then as what it was, anew."""
        step, did = divmod(int(self.mine[0]), KINDS)
        self.tell(ARRIVED, step)
        try:
            yield
        finally:
            self.tell(did, step)

    def leave(self) -> None:
        """Mark this rank as waiting for other nodes, from any activity."""
        if self.mine[0] % KINDS != WAITING_REMOTE:
            self.did = self.mine[0]
            self.mine[0] += WAITING_REMOTE - self.did % KINDS

    def return_(self) -> None:
        """Restore the activity before :meth:`leave`."""
        if self.mine[0] % KINDS == WAITING_REMOTE:
            self.mine[0] = self.did

    def is_away(self, rank: int) -> bool:
        """Return True if a rank of this node waits for other nodes."""
        return bool(self.words[rank, 0] % KINDS == WAITING_REMOTE)

    def look(self) -> tuple[list[int], list[int], list[float]]:
        """Return each rank's activity, its step, and the start of the activity in seconds of ``time.perf_counter``."""
        words, since = self.words[:, 0].tolist(), self.words[:, 1].tolist()
        return [word % KINDS for word in words], [word // KINDS for word in words], [at / 1e9 for at in since]


def size(n_ranks: int) -> int:
    """Return the size of the words of ``n_ranks`` ranks, in bytes."""
    return n_ranks * LINE_BYTES
