"""Contract of a store (:class:`Store`), which holds the parameters of a job once.

Soft Memory Box calls it a memory server (Ahn et al. 2018), PGAS languages a shared array. Ranks ``pull`` the parameters
and ``push`` differences at any time; the ``clock`` counts the applied ones. With a server, rank 0 alone writes, and the
workers ``post`` their gradients to it.
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

#: fields of the note of a post: number of samples, learning rate, the worker's step, clock of the parameters that the
#: gradient was computed from, and 1 if the worker posts no more in this epoch, else 0
SAMPLES, RATE, STEP, PULLED, LAST = range(5)
HEADER = 5


class Store:
    """Base class of the stores, constructed as ``make(team, size, allocator, copies, rows)`` on every rank.

    Parameters
    ----------
    team : Team
    size : int
        Length of the vector, S.
    allocator : Allocator
        Source of all memory of the store.
    copies : int
        1: every rank writes, and a pull may read part of a concurrent push. 2: rank 0 writes the copy that is not
        read, so that every pull is of one clock.
    rows : int
        Vectors of a post; 0 if nobody posts.

    Attributes
    ----------
    traffic : Traffic
        Bytes moved by this rank.
    params : list of ndarray of float32, shape (S,)
        The copies, on ranks that have them in memory: all ranks of a shared store, rank 0 of a window.
    inbox : ndarray of float32, shape (n_workers, rows, S)
        The last post of each worker; on rank 0.
    headers : ndarray of float64, shape (n_workers, HEADER)
        The notes of these posts.
    """

    name = ""
    nearby = True  # True if all ranks have the parameters in memory

    def __init__(self, team: Team, size: int, allocator: Allocator, copies: int, rows: int):
        self.team, self.size, self.copies, self.rows = team, size, copies, rows
        self.traffic = Traffic()
        self.params: Sequence[np.ndarray] = ()
        self.inbox: Any = None
        self.headers = np.zeros((0, HEADER))

    def open(self) -> None:
        """Open the store, after rank 0 has written the parameters to ``params[0]``. All ranks must call."""

    def close(self) -> None:
        """Free the MPI objects of the store. All ranks must call."""

    @property
    def clock(self) -> int:
        """Number of pushes applied, or of updates made by the server."""
        raise NotImplementedError

    def pull(self, out: np.ndarray) -> int:
        """Copy the parameters to ``out`` (S,); return a clock, everything up to which they contain."""
        raise NotImplementedError

    def push(self, delta: np.ndarray) -> int:
        """Add ``delta`` (S,) to the parameters; return the clock before. Only for stores of one copy.

        Concurrent pushes are all applied, element by element.
        """
        raise NotImplementedError

    def next_ticket(self) -> int:
        """Return the next ticket, 0, 1, 2, ..., counted over all ranks since the last :meth:`rest`."""
        raise NotImplementedError

    def close_tickets(self) -> int:
        """Return how many tickets were given out, and let further ones exceed any epoch until :meth:`rest`."""
        raise NotImplementedError

    def rest(self) -> None:
        """Wait for all ranks and their one-sided operations; restart tickets at 0. All ranks must call."""
        raise NotImplementedError

    def progress(self) -> None:
        """Let MPI make progress on other ranks' accesses to this rank's memory."""

    def slot(self) -> np.ndarray | None:
        """Return the row of ``inbox`` (S,) for the first vector of this worker's posts; None if not in its memory.

        A vector computed there is posted without a copy; it may be overwritten once :meth:`wait_ack` has returned.
        """
        return None

    def post(self, vectors: Sequence[np.ndarray], *note: float) -> None:
        """Send vectors (S,) and a note to rank 0, once it has granted this worker's previous post."""
        raise NotImplementedError

    def wait_ack(self) -> int:
        """Wait until rank 0 has granted this worker's last post; return the ``word`` of that :meth:`ack`."""
        raise NotImplementedError

    def collect(self) -> int:
        """Wait for a post, and return its worker; the post is in ``inbox`` and ``headers``. Rank 0 calls."""
        raise NotImplementedError

    def ack(self, worker: int, word: int = 0) -> None:
        """Release a worker from its last post, which it may then overwrite, with a ``word`` for it. Rank 0 calls."""
        raise NotImplementedError

    def begin(self) -> None:
        """Announce that the copy which is not current will be written. Rank 0, the only writer, calls."""
        raise NotImplementedError

    def commit(self) -> None:
        """Make that copy the current one, and advance the clock. Rank 0 calls."""
        raise NotImplementedError


def make(name: str, team: Team, size: int, allocator: Allocator, copies: int, rows: int = 0) -> Store:
    """Return a store by name; ``auto``: ``shared`` on one node, else ``window``. UserError for unsupported nodes."""
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
