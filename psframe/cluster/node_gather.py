"""What the ranks of a node tell each other while they train: through shared memory, under the deadline of its gates."""

from collections.abc import Sequence

import numpy as np

from psframe.cluster.gates import Rendezvous

CHUNK_BYTES = 32768  # of a rank's message that lie on the board at once


class Board:
    """A row of memory for each rank of a node, which that rank writes and the others read between two gates.

    Parameters
    ----------
    memory : ndarray of uint8
        Shared by the node's ranks, :func:`size` bytes from a multiple of 8.
    meeting : Rendezvous
        Where they wait for each other.
    """

    def __init__(self, memory: np.ndarray, meeting: Rendezvous):
        n = meeting.everyone.n
        self.meeting = meeting
        self.sizes = memory[: 8 * n].view(np.uint64)
        self.rows = memory[8 * n : size(n)].reshape(n, CHUNK_BYTES)

    def gather(self, message: bytes) -> list[bytes]:
        """Return every rank's message on the node's first rank, elsewhere none. All ranks of the node must call.

        PeerLost where one of them has died, or has not come in time; so :meth:`tell`.
        """
        return self._exchange(message, range(len(self.rows)) if self.meeting.me == 0 else ())

    def tell(self, message: bytes = b"") -> bytes:
        """Return the first rank's message. All ranks of the node must call."""
        (heard,) = self._exchange(message if self.meeting.me == 0 else b"", (0,))
        return heard

    def _exchange(self, message: bytes, speakers: Sequence[int]) -> list[bytes]:
        """Write ``message`` by chunks until the longest of all is told; return those of the ``speakers``."""
        heard = [bytearray() for _ in speakers]
        me, longest, told = self.meeting.me, 1, 0
        self.sizes[me] = len(message)
        while told < longest:
            part = message[told : told + CHUNK_BYTES]
            self.rows[me, : len(part)] = np.frombuffer(part, np.uint8)
            self.meeting.together()
            longest = int(self.sizes.max())
            for words, speaker in zip(heard, speakers, strict=True):
                words += self.rows[speaker, : max(0, int(self.sizes[speaker]) - told)].tobytes()
            self.meeting.together()  # before anybody writes there again
            told += CHUNK_BYTES
        return [bytes(words) for words in heard]


def size(n_ranks: int) -> int:
    """Return the bytes that the board of so many ranks takes."""
    return n_ranks * (8 + CHUNK_BYTES)
