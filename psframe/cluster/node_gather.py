"""Messages of a node's ranks during training (:class:`Board`): in shared memory, under the deadline of its gates."""

from collections.abc import Sequence

import numpy as np

from psframe.cluster.gates import Rendezvous

CHUNK_BYTES = 32768  # bytes of a rank's message on the board at once


class Board:
    """One row of memory per rank of a node, which that rank writes and the others read between two gates.

    Parameters
    ----------
    memory : ndarray of uint8
        Shared by the node's ranks, at least :func:`size` bytes, 8-byte aligned.
    meeting : Rendezvous
        Gates of these ranks.
    """

    def __init__(self, memory: np.ndarray, meeting: Rendezvous):
        n = meeting.everyone.n
        self.meeting = meeting
        self.sizes = memory[: 8 * n].view(np.uint64)
        self.rows = memory[8 * n : size(n)].reshape(n, CHUNK_BYTES)

    def gather(self, message: bytes) -> list[bytes]:
        """Return every rank's message on the node's first rank, [] elsewhere. All ranks of the node must call.

        Raises PeerLost if one of them has died, or has missed the deadline; so does :meth:`tell`.
        """
        return self._exchange(message, range(len(self.rows)) if self.meeting.me == 0 else ())

    def gather_to_all(self, message: bytes) -> list[bytes]:
        """Return every rank's message, on all ranks. All of the node must call."""
        return self._exchange(message, range(len(self.rows)))

    def tell(self, message: bytes = b"") -> bytes:
        """Return the first rank's message. All ranks of the node must call."""
        (heard,) = self._exchange(message if self.meeting.me == 0 else b"", (0,))
        return heard

    def _exchange(self, message: bytes, speakers: Sequence[int]) -> list[bytes]:
        """Write ``message`` by chunks until the longest message is written; return those of the ``speakers``."""
        messages = [bytearray() for _ in speakers]
        me, longest, n_written = self.meeting.me, 1, 0
        self.sizes[me] = len(message)
        while n_written < longest:
            part = message[n_written : n_written + CHUNK_BYTES]
            self.rows[me, : len(part)] = np.frombuffer(part, np.uint8)
            self.meeting.together()
            longest = int(self.sizes.max())
            for words, speaker in zip(messages, speakers, strict=True):
                words += self.rows[speaker, : max(0, int(self.sizes[speaker]) - n_written)].tobytes()
            self.meeting.together()  # before any rank writes there again
            n_written += CHUNK_BYTES
        return [bytes(words) for words in messages]


def size(n_ranks: int) -> int:
    """Return the size of the board of ``n_ranks`` ranks, in bytes."""
    return n_ranks * (8 + CHUNK_BYTES)
