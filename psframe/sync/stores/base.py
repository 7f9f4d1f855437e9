"""Contract of a store (:class:`Store`), which holds the parameters of a job once.

Soft Memory Box calls it a memory server (Ahn et al. 2018), PGAS languages a shared array. Ranks ``pull`` the parameters
and ``push`` differences at any time; the ``clock`` counts the applied ones. With a server, rank 0 alone writes, and the
workers post their gradients to its mailbox.
"""

from collections.abc import Callable, Sequence

import numpy as np

from psframe.cluster.roles import Team
from psframe.config import registry
from psframe.memory.allocator import Allocator
from psframe.record.traffic import Traffic
from psframe.sync.stores import TABLE
from psframe.sync.stores.mailbox import Mailbox

NO_MORE = 1 << 30  # added to the tickets; more than any epoch has


class Tickets:
    """Numbers 0, 1, 2, ..., each given to one rank, from a counter that all ranks of a store share.

    Parameters
    ----------
    add : callable
        Adds a number to the counter atomically, and returns the value before.
    """

    def __init__(self, add: Callable[[int], int]):
        self._add = add

    def next(self) -> int:
        """Return the next ticket since the last :meth:`Store.rest`."""
        return self._add(1)

    def close(self) -> int:
        """Return how many tickets were given out, and let further ones exceed any epoch until :meth:`Store.rest`."""
        return self._add(NO_MORE)


class Writing:
    """Context in which rank 0 writes the copy of a store's parameters that is not read; it is current afterwards."""

    def __init__(self, store: "Store"):
        self._store = store

    def __enter__(self) -> None:
        self._store._begin()

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is None:
            self._store._commit()


class Store:
    """Base class of the stores, constructed as ``make(team, size, allocator, copies, traffic)`` on every rank.

    Members of the family have these arguments as attributes whose names begin with ``_``.

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
    traffic : Traffic
        Counts the bytes moved by this rank, the mailbox's included.

    Attributes
    ----------
    params : list of ndarray of float32, shape (S,)
        The copies, on ranks that have them in memory: all ranks of a shared store, rank 0 of a window.
    tickets : Tickets
    progress : callable or None
        Lets MPI make progress on other ranks' accesses to this rank's memory, which calls it between layers; None if
        all ranks have the parameters in memory.
    """

    params: Sequence[np.ndarray] = ()
    tickets: Tickets
    progress: Callable[[], None] | None = None

    def __init__(self, team: Team, size: int, allocator: Allocator, copies: int, traffic: Traffic):
        self._team, self._size, self._allocator = team, size, allocator
        self._copies, self._traffic = copies, traffic

    @property
    def writing(self) -> Writing:
        """Context in which rank 0, the only writer of two copies, writes the other one; advances the clock."""
        return Writing(self)  # not kept: a cycle of references would keep the memory

    def mailbox(self, rows: int) -> Mailbox:
        """Return a mailbox for posts of ``rows`` vectors, before :meth:`open`. All ranks must call."""
        raise NotImplementedError

    def open(self) -> None:
        """Open the store, after rank 0 has written the parameters to ``params[0]``. All ranks must call."""

    def close(self) -> None:
        """Free the MPI objects of the store. All ranks must call."""

    def pull(self, out: np.ndarray) -> int:
        """Copy the parameters to ``out`` (S,); return a clock, everything up to which they contain."""
        raise NotImplementedError

    def push(self, delta: np.ndarray) -> int:
        """Add ``delta`` (S,) to the parameters; return the clock before. Only for stores of one copy.

        Concurrent pushes are all applied, element by element.
        """
        raise NotImplementedError

    def rest(self) -> None:
        """Wait for all ranks and their one-sided operations; restart tickets at 0. All ranks must call."""
        raise NotImplementedError

    def _begin(self) -> None:
        """Announce that the copy which is not current will be written."""
        raise NotImplementedError

    def _commit(self) -> None:
        """Make that copy the current one, and advance the clock."""
        raise NotImplementedError


def resolved(name: str, n_nodes: int) -> str:
    """Return the name of a store on so many nodes; ``auto``: ``shared`` on one node, else ``window``."""
    if name != "auto":
        return name
    return "window" if n_nodes > 1 else "shared"


def make(name: str, team: Team, size: int, allocator: Allocator, copies: int, traffic: Traffic) -> Store:
    """Return a store by name, or ``auto``. UserError for unsupported nodes."""
    name = resolved(name, team.cluster.n_nodes if team.cluster else 1)
    store: Store = registry.load("sync.store", TABLE, name)(team, size, allocator, copies, traffic)
    return store
