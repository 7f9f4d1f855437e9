"""What each rank of a node does just now, where the others can read it: a store a turn, no call."""

from time import perf_counter_ns

import numpy as np

LINE_BYTES = 128  # a rank's words, apart from those of others
IDLE, WORKS, CAME, AWAY = 0, 1, 2, 3  # not in a step; computes it; came to its exchange; waits for other nodes
KINDS = 4


class Pulse:
    """Two words for each rank of a node: what it does in which step, and since when.

    Parameters
    ----------
    memory : ndarray of uint8
        Shared by the node's ranks, :func:`size` bytes from a multiple of 8.
    me : int
        This rank's number on the node.
    """

    def __init__(self, memory: np.ndarray, n_ranks: int, me: int):
        self.words = memory[: size(n_ranks)].view(np.int64).reshape(n_ranks, -1)
        self.me, self.mine = me, self.words[me]

    def tell(self, does: int, step: int = 0) -> None:
        """Say what this rank does from now on; ``step`` counts over the whole run."""
        self.mine[1] = perf_counter_ns()
        self.mine[0] = step * KINDS + does

    def leave(self) -> None:
        """Say that it waits for other nodes, whatever it did."""
        if self.mine[0] % KINDS != AWAY:
            self.did = self.mine[0]
            self.mine[0] += AWAY - self.did % KINDS

    def return_(self) -> None:
        """Say that it goes on with that."""
        if self.mine[0] % KINDS == AWAY:
            self.mine[0] = self.did

    def is_away(self, rank: int) -> bool:
        """Whether a rank of this node waits for other nodes."""
        return bool(self.words[rank, 0] % KINDS == AWAY)

    def look(self) -> tuple[list[int], list[int], list[float]]:
        """Return what each rank does, in which step, and since when, in seconds of ``time.perf_counter``."""
        words, since = self.words[:, 0].tolist(), self.words[:, 1].tolist()
        return [word % KINDS for word in words], [word // KINDS for word in words], [at / 1e9 for at in since]


def size(n_ranks: int) -> int:
    """Return the bytes that the words of so many ranks take."""
    return n_ranks * LINE_BYTES
