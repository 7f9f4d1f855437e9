"""Request to end an epoch early (:class:`StopFlag`): every rank ends with the same step."""

from typing import Any

import numpy as np

from psframe import compiled
from psframe.cluster.deadline import DeadlineWaiter
from psframe.cluster.mpi import MPI

#: bytes of a node's memory: the front of its steps and, on another cache line, the signal that a rank received
N_BYTES = 256


class StopFlag:
    """Limit on the steps that may begin, on one node or if all ranks meet in every step, and the signal received.

    Parameters
    ----------
    memory : ndarray of uint8
        Shared by the node's ranks, N_BYTES, 128-byte aligned, zeroed on creation.
    leaders : MPI.Comm
        On a node's first rank, the first ranks of all nodes; MPI.COMM_NULL elsewhere.
    patience : DeadlineWaiter
        Waits of these ranks for each other.
    """

    def __init__(self, memory: np.ndarray, leaders: "MPI.Comm", patience: DeadlineWaiter):
        self.front: Any = compiled.sync.Front(memory[:128])
        self.sent = memory[128:132].view(np.uint32)
        self.leaders, self.patience, self.several = leaders, patience, bool(patience.others)
        self.asked = np.zeros(1, np.int32)

    def reopen(self) -> None:
        """Restart the count of steps. Each node's first rank calls, while the others wait for it."""
        self.front.reopen()
        self.asked[0] = 0

    def may(self, step: int, together: bool) -> bool:
        """Return True if this rank may begin a step of the epoch. All ranks ask before each, and get one answer.

        ``together``: no rank begins a step before all have ended the previous one. Without it, several nodes cannot
        agree, and every step may begin.
        """
        allowed: bool = self.front.may(step)
        if self.several and together and self.leaders != MPI.COMM_NULL:
            self.patience.wait(self.leaders.Ibcast(self.asked), [0])
            if self.asked[0]:
                self.front.close()  # no rank here has begun the next step, since this one has not begun this step
        return allowed

    def stop(self) -> None:
        """Ask all ranks to begin no step that none of them has begun. Rank 0 calls."""
        if self.several:
            self.asked[0] = 1
        else:
            self.front.close()

    @property
    def begun(self) -> int:
        """Number of steps begun on this node."""
        return int(self.front.begun())

    @property
    def signal(self) -> int:
        """The signal that a rank of this node received, or 0."""
        return int(self.sent[0])

    @signal.setter
    def signal(self, number: int) -> None:
        self.sent[0] = number
