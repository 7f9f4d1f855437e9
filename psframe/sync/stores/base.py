"""The contract of a store.

A store holds the parameters of a job once: what Soft Memory Box calls a memory server (Ahn et al. 2018), and PGAS
languages a shared array. Ranks ``pull`` them and ``push`` differences, each when it likes; the ``clock`` counts what
has been applied. Where one rank serves, it alone writes, and the others ``post`` it what it is to apply.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from psframe.cluster.roles import Team
from psframe.config import registry
from psframe.errors import UserError
from psframe.memory.allocator import Allocator
from psframe.record.traffic import Traffic
from psframe.sync.stores import TABLE

#: what stands in the note of a post: how many samples, the learning rate, the poster's step, the clock of the
#: parameters that it was computed from, and whether it is a gradient or the word that there will be none
SAMPLES, RATE, STEP, PULLED, LAST = range(5)
NOTE = 5


class Store:
    """Made as ``make(team, size, allocator, copies, rows)`` on every rank; takes its memory from ``allocator``.

    Parameters
    ----------
    team : Team
    size : int
        Numbers of the vector, S.
    allocator : Allocator
    copies : int
        1: parameters that everybody writes; a pull may see some of a push that goes on just then. 2: rank 0 writes
        beside what is read, so that every pull is of one clock.
    rows : int
        Vectors that a post has; 0 where nobody posts.

    Attributes
    ----------
    traffic : Traffic
        What this rank has moved.
    params : list of ndarray, shape (S,)
        The copies, where this rank has them in memory: all ranks of a shared store, rank 0 of a window.
    mail : ndarray, shape (n_workers, rows, S)
        What was posted last, by worker; on rank 0.
    notes : ndarray of float64, shape (n_workers, NOTE)
        What came with it.
    """

    name = ""
    nearby = True  # whether all ranks have the parameters in memory

    def __init__(self, team: Team, size: int, allocator: Allocator, copies: int, rows: int):
        self.team, self.size, self.copies, self.rows = team, size, copies, rows
        self.traffic = Traffic()
        self.params: Sequence[np.ndarray] = ()
        self.mail: Any = None
        self.notes = np.zeros((0, NOTE))

    def open(self) -> None:
        """Make the store ready, after rank 0 has written the parameters to ``params[0]``. All ranks must call."""

    def close(self) -> None:
        """Let go of what MPI knows of the store. All ranks must call."""

    @property
    def clock(self) -> int:
        """What has been applied: pushes, or updates of the rank that serves."""
        raise NotImplementedError

    def pull(self, out: np.ndarray) -> int:
        """Copy the parameters to ``out`` (S,); return a clock: all that it counts is in them."""
        raise NotImplementedError

    def push(self, delta: np.ndarray) -> int:
        """Add ``delta`` (S,) to the parameters, of which there is one copy; return the clock before.

        Pushes at the same time are all counted, element by element.
        """
        raise NotImplementedError

    def draw(self) -> int:
        """Return 0, 1, 2, ...: each number to one rank only, since the last :meth:`rest`."""
        raise NotImplementedError

    def close_draw(self) -> int:
        """Let nobody draw a number that is of use, until the next :meth:`rest`; return how many were drawn."""
        raise NotImplementedError

    def rest(self) -> None:
        """Wait until all ranks are here, and others' one-sided operations are done. All ranks must call."""
        raise NotImplementedError

    def progress(self) -> None:
        """Let MPI work on what others want of this rank's memory."""

    def slot(self) -> np.ndarray | None:
        """Return where rank 0 finds the first vector of this worker's posts, if this rank has it in memory; else None.

        What stands there when it is posted need not be copied; it may be written when :meth:`settled` has returned.
        """
        return None

    def post(self, vectors: Sequence[np.ndarray], *note: float) -> None:
        """Leave vectors (S,) and a note for rank 0, when it has taken what this worker left before."""
        raise NotImplementedError

    def settled(self) -> int:
        """Wait until rank 0 has granted what this worker posted last; return what it said with it."""
        raise NotImplementedError

    def collect(self) -> int:
        """Return a worker that has posted, when one has; its post is in ``mail`` and ``notes``. Rank 0."""
        raise NotImplementedError

    def grant(self, worker: int, word: int = 0) -> None:
        """Let a worker go on from its last post, which is overwritten then. Rank 0."""
        raise NotImplementedError

    def begin(self) -> None:
        """Say that the other copy will be written now. Rank 0, which is the only one that writes."""
        raise NotImplementedError

    def commit(self) -> None:
        """Make that copy the current one, and count it. Rank 0."""
        raise NotImplementedError


def make(name: str, team: Team, size: int, allocator: Allocator, copies: int, rows: int = 0) -> Store:
    """Return a store by name: ``auto`` is ``shared`` on one node, else ``window``. UserError where it cannot serve."""
    n_nodes = team.cluster.n_nodes if team.cluster else 1
    if name == "auto":
        name = "shared" if n_nodes == 1 else "window"
    made: Store = registry.load("sync.store", TABLE, name)(team, size, allocator, copies, rows)
    made.name = name
    if made.nearby and n_nodes > 1:
        raise UserError(
            f"sync.store: {name} must have all ranks on one node, got {n_nodes} nodes; give sync.store=window"
        )
    return made
