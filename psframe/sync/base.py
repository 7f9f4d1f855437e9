"""The contract of a sync mode."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import numpy as np

from psframe.cluster.cluster import Cluster
from psframe.cluster.groups import Group
from psframe.cluster.roles import Team
from psframe.collectives.base import Base, Collective
from psframe.errors import UserError
from psframe.memory.allocator import Allocator
from psframe.memory.arena import ONE_COPY, Arena, Keeping, Layout
from psframe.optim import Optimizer, Updater
from psframe.record.trace import UNTRACED, Trace
from psframe.record.traffic import Traffic
from psframe.sync.sampler import Sampler
from psframe.sync.stores.base import Store
from psframe.sync.tally import Tally
from psframe.sync.traits import Traits
from psframe.sync.work_source import SampleQueue, StaticShards, WorkSource


class SyncMode(Protocol):
    """What a user's own mode must have: it exchanges the gradients of every step through a collective.

    Made as ``make(**yaml_keys)`` to say what rank 0 is, then given its parts by :meth:`open`. Postcondition of a step:
    all workers hold the same parameters, and the mean over all samples of the step was applied once. One that does
    otherwise derives from :class:`Mode`.

    Attributes
    ----------
    server : str or None
        ``dedicated``, ``colocated``, or None; see :class:`psframe.cluster.cluster.Team`.
    wait : {'auto', 'spin', 'block'}, optional
        How ranks of a node wait for each other over shared memory: in the kernel, or first spinning for as long as
        waking up would take (``auto``: if every rank has a core), or spinning to the end.
    overlaps : bool, optional
        Whether a step exchanges just the gradients in the arena, so that they may leave while backward goes on.
    deadline_s : float, optional
        Seconds after which a rank that others wait for there is taken to be stuck.
    """

    server: str | None

    def open(self, arena: Arena, collective: Collective, update: Updater) -> None:
        """Take the parts and make every rank's parameters those of rank 0. All ranks must call."""

    def step(self, n_samples: int, lr: float, step: int) -> None:
        """Exchange the gradients in the arena and update. All ranks must call.

        ``n_samples`` counts the samples of this step over all workers, ``step`` counts from 1 over the whole run.
        """


@dataclass(frozen=True)
class Parts:
    """What a mode makes its memory of.

    Attributes
    ----------
    team : Team
        All ranks.
    group : Group
        The ranks that are together in what the mode does apart; all of a node where it asks for no groups.
    collective : Base
        Among the ranks of the group if the mode has groups, else among all.
    cluster : Cluster
        All ranks and their nodes.
    keeping : Keeping
        Of parameters that a step replaces.
    drops : bool
        Whether gradients that are not finite are to be dropped.
    trace : Trace
        Traces waits and exchanges.
    """

    team: Team
    group: Group
    layout: Layout
    optimizer: Optimizer
    collective: Base
    allocator: Allocator
    sampler: Sampler
    cluster: Cluster
    keeping: Keeping = ONE_COPY
    drops: bool = False
    trace: Trace = UNTRACED


@dataclass(frozen=True)
class Snapshot:
    """State to go on from after a worker died, on rank 0.

    Attributes
    ----------
    done : int
        Samples of the epoch whose gradients it has.
    params : ndarray of float32, shape (S,)
    rows : list of ndarray of float32, shape (S,)
        What a checkpoint holds beside the parameters.
    """

    done: int
    params: np.ndarray
    rows: list[np.ndarray]


class Mode:
    """Base of the sync modes; here the behaviour of a synchronous one.

    Attributes
    ----------
    traits : Traits
    parts : Parts
    arena : Arena
        Vectors that this rank computes in.
    work : WorkSource
        Deals out the steps.
    update : Updater
    store : Store or None
        The store that it uses.
    tally : Tally
        Counts of what it did.

    ``traits`` stand from the beginning, ``update`` once :meth:`open` was called, the others once :meth:`build` was.
    """

    parts: Parts
    arena: Arena
    work: WorkSource
    update: Updater
    store: Store | None = None

    def __init__(self, traits: Traits):
        self.traits, self.tally = traits, Tally()

    def check(self, team: Team, group: Group) -> None:
        """UserError if these ranks cannot run it. All ranks call."""

    def build(self, parts: Parts) -> Arena:
        """Allocate memory, and return the vectors that this rank computes in. No rank waits for another here."""
        self.parts, self.tally = parts, Tally(parts.trace)
        self.arena = self._allocate(parts)
        self.work = self._source(parts)
        return self.arena

    def _allocate(self, parts: Parts) -> Arena:
        """Return the vectors that this rank computes in, and allocate what else the mode needs."""
        return parts.collective.arena(parts.layout, parts.optimizer.n_state, parts.keeping, parts.trace)

    def _source(self, parts: Parts) -> WorkSource:
        return StaticShards(parts.sampler, parts.cluster.halt, self.arena, self.traits.same_each_step)

    def open(self, update: Updater) -> None:
        """Make every rank's parameters those of rank 0. All ranks must call."""
        self.update = update
        self.parts.collective.broadcast(self.arena.params)

    def turns(self, n_steps: int) -> Iterator[tuple[int, int | None]]:
        """Yield the turns of this rank in an epoch: a step, and the worker whose share it computes, or None.

        Before the next turn is asked for, the gradients of the last one are in the arena, and :meth:`step` was called.
        """
        worker = self.parts.team.worker
        for step in range(n_steps):
            if not self.work.may_begin(step):
                return
            yield step, worker
            if worker is not None:
                self.tally.saw(0)
                self.tally.pulls += 1
                self.tally.pushes += 1

    def step(self, n_samples: int, lr: float, step: int) -> bool:
        """Finish a turn; return True if all ranks have exchanged something. All ranks call.

        Arguments as in :class:`SyncMode`.
        """
        raise NotImplementedError

    def drain(self) -> None:
        """End an epoch: finish what is under way, and make every rank's parameters the run's. All must call."""

    def snapshot(self) -> Snapshot:
        """Return the state to go on from after a worker died. Rank 0 calls, when no rank trains any more."""
        return Snapshot(self.work.salvaged(), self.arena.params, self.state())

    def state(self) -> list[np.ndarray]:
        """Return what a checkpoint holds beside the parameters: rows (S,), as rank 0 has them."""
        return list(self.arena.state)

    @property
    def layer_hook(self) -> Callable[[], None] | None:
        """Function to call between layers, so that MPI serves others from this rank's memory; None if not needed."""
        computes = self.store is not None and not self.store.nearby and self.traits.server is None
        return self.store.progress if self.store and computes else None

    def close(self) -> None:
        """End a run. All ranks must call."""
        if self.store:
            self.store.close()

    def traffics(self) -> Sequence[Traffic]:
        """Return the counts of what moved otherwise than by the collective and ``update``."""
        return [self.store.traffic] if self.store else []

    def _fill(self, store: Store) -> None:
        """Open a store of one copy with rank 0's parameters in it. All ranks must call."""
        if self.parts.team.comm.rank == 0:
            store.params[0][:] = self.arena.params
        store.open()

    def _meet_at(self, store: Store) -> None:
        """Wait until all who use a store are here, and count that as waiting."""
        began = perf_counter()
        if isinstance(self.work, SampleQueue) and self.parts.team.comm.rank == 0:
            self.work.stop()  # the store forgets how many there were
        store.rest()
        self.tally.waited_since(began)


class Own(Mode):
    """A user's own mode, which has the two methods of :class:`SyncMode`."""

    def __init__(self, inner: SyncMode):
        if not all(hasattr(inner, name) for name in ("server", "open", "step")):
            raise UserError(
                f"a sync mode must have server, open and step, got {inner!r}; see psframe.sync.base.SyncMode"
            )
        said = {name: getattr(inner, name) for name in ("wait", "deadline_s", "overlaps") if hasattr(inner, name)}
        super().__init__(Traits("step", inner.server, averages=True, **said))
        self.inner = inner

    def open(self, update: Updater) -> None:
        self.inner.open(self.arena, self.parts.collective, update)

    def step(self, n_samples: int, lr: float, step: int) -> bool:
        self.inner.step(n_samples, lr, step)
        return True
