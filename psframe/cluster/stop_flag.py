"""How a run is asked to end its epoch early: every rank, with the same step."""

from typing import Any

import numpy as np
from mpi4py import MPI

from psframe import compiled
from psframe.cluster.deadline import Patience

#: bytes of a node's memory: the front of its steps, and on another cache line the signal that a rank was sent
N_BYTES = 256


class Halt:
    """Which steps may begin, on one node or where all ranks meet in every step, and which signal a rank was sent.

    Parameters
    ----------
    memory : ndarray of uint8
        Shared by the node's ranks, N_BYTES from a multiple of 128, zeroed when it was new.
    leaders : MPI.Comm
        On a node's first rank: the first ranks of all nodes. Elsewhere MPI.COMM_NULL.
    patience : Patience
        With which they wait for each other.
    """

    def __init__(self, memory: np.ndarray, leaders: MPI.Comm, patience: Patience):
        self.front: Any = compiled.sync.Front(memory[:128])
        self.sent = memory[128:132].view(np.uint32)
        self.leaders, self.patience, self.several = leaders, patience, bool(patience.others)
        self.asked = np.zeros(1, np.int32)

    def reopen(self) -> None:
        """Begin to count steps anew. Each node's first rank calls, while the others wait for it."""
        self.front.reopen()
        self.asked[0] = 0

    def may(self, step: int, together: bool) -> bool:
        """Whether this rank may begin a step of the epoch. All ranks ask before each; what one may, all may.

        ``together``: no rank begins a step before all have ended the one before. Without, several nodes cannot agree,
        and every step may begin.
        """
        allowed: bool = self.front.may(step)
        if self.several and together and self.leaders != MPI.COMM_NULL:
            self.patience.wait(self.leaders.Ibcast(self.asked), [0])
            if self.asked[0]:
                self.front.close()  # nobody here has begun the next step, since this rank has not begun this one
        return allowed

    def stop(self) -> None:
        """Ask that no step begin that none has begun. Rank 0 calls."""
        if self.several:
            self.asked[0] = 1
        else:
            self.front.close()

    @property
    def begun(self) -> int:
        """How many steps have begun on this node."""
        return int(self.front.begun())

    @property
    def signal(self) -> int:
        """The signal that some rank of this node was sent, or 0."""
        return int(self.sent[0])

    @signal.setter
    def signal(self, number: int) -> None:
        self.sent[0] = number
