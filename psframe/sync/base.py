"""Contract of a sync mode: :class:`SyncMode` for a user's own, :class:`Mode` for the built-in ones."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from psframe import compiled
from psframe.cluster.cluster import AgreedError, Cluster
from psframe.cluster.groups import Group
from psframe.cluster.roles import Roles, Team
from psframe.collectives.base import BaseCollective, Collective
from psframe.errors import UserError
from psframe.memory.allocator import Allocator
from psframe.memory.arena import ONE_COPY, Arena, Keeping, Layout
from psframe.optim import Updater
from psframe.record.clock import CLOCK
from psframe.record.traffic import Traffic
from psframe.sync.sampler import Sampler
from psframe.sync.stores.base import Store, make
from psframe.sync.tally import Tally
from psframe.sync.traits import Traits
from psframe.sync.work_source import SampleQueue, StaticShards, WorkSource, steps


class SyncMode(Protocol):
    """Interface of a user's own mode, which exchanges the gradients of every step through a collective.

    Constructed as ``make(**yaml_keys)``, before there are ranks; :meth:`open` then passes the arena, the collective and
    the updater. Postcondition of a step: all workers hold the same parameters, and the mean gradient over all samples
    of the step was applied once. At the end of an epoch the run fails where parameters differ. A mode with any other
    postcondition derives from :class:`Mode`, or from :class:`psframe.sync.averaging.Averaging`.

    The collective yields slices of the vector with their mean gradients. A mean is an array, or a
    ``compiled.elementwise.Mean`` that is not computed yet: ``update(segment, mean, lr, step)`` takes either.

    Attributes
    ----------
    server : str or None
        Role of rank 0: ``dedicated``, ``colocated``, or None; see :class:`psframe.cluster.roles.Team`.
    overlaps : bool, optional
        True if a step exchanges only the gradients in the arena, so that they may be sent during backward.
    """

    server: str | None

    def open(self, arena: Arena, collective: Collective, update: Updater) -> None:
        """Store the arguments, and copy rank 0's parameters to every rank. All ranks must call."""

    def step(self, n_samples: int, lr: float, step: int) -> None:
        """Exchange the gradients in the arena and update the parameters. All ranks must call.

        ``n_samples`` is the number of samples of this step over all workers; ``step`` counts from 1 over the run.
        """


@dataclass(frozen=True)
class Parts:
    """Components that a mode builds its memory from.

    Attributes
    ----------
    team : Team
        All ranks.
    group : Group
        The ranks that act together in a mode with groups; without groups, those of a node.
    n_state : int
        Numbers that an update keeps for each parameter.
    collective : BaseCollective
        Over the ranks of the group if the mode has groups, else over all ranks.
    cluster : Cluster
        All ranks and their nodes.
    tally : Tally
        To count pulls, pushes, staleness and waits; its trace is for exchanges, too.
    keeping : Keeping
        Copies kept of the parameters that a step replaces.
    drops_nonfinite : bool
        True if non-finite gradients are to be dropped.
    """

    team: Team
    group: Group
    layout: Layout
    n_state: int
    collective: BaseCollective
    allocator: Allocator
    sampler: Sampler
    cluster: Cluster
    tally: Tally = field(default_factory=Tally)
    keeping: Keeping = ONE_COPY
    drops_nonfinite: bool = False


@dataclass(frozen=True)
class Snapshot:
    """State on rank 0 from which training can continue.

    Attributes
    ----------
    params : ndarray of float32, shape (S,)
    rows : list of ndarray of float32, shape (S,)
        Vectors of a checkpoint besides the parameters.
    """

    params: np.ndarray
    rows: list[np.ndarray]


class Mode:
    """Base class of the sync modes, with the defaults of a synchronous one.

    ``traits`` is set on construction, the other attributes by :meth:`build`. Members of the family have ``_parts`` from
    then on and ``_arena``, the vectors that this rank computes on; ``_tally``; ``_store``, if they keep one; and
    ``_update`` once :meth:`open` was called.

    Attributes
    ----------
    traits : Traits
    source : WorkSource
        Assigns the steps.
    """

    source: WorkSource
    _tally: Tally
    _arena: Arena
    _store: Store | None = None
    _parts: Parts
    _update: Updater

    def __init__(self, traits: Traits):
        self.traits = traits

    def check(self, roles: Roles) -> None:
        """Raise UserError if ranks in these roles cannot run the mode. Rank 0 calls, and ``psframe check``."""

    def build(self, parts: Parts) -> Arena:
        """Allocate memory, and return the arena that this rank computes on. No rank waits for another here."""
        self._parts, self._tally = parts, parts.tally
        self._arena = self._allocate(parts)
        self.source = self._source(parts)
        return self._arena

    def _allocate(self, parts: Parts) -> Arena:
        """Return the arena of this rank, and allocate the other memory of the mode; by default the collective's."""
        return parts.collective.arena(parts.layout, parts.n_state, parts.keeping, parts.tally.trace)

    def _make_store(self, parts: Parts, copies: int = 1) -> Store:
        """Return the store that the traits name, for :attr:`_store`; UserError for unsupported nodes."""
        traffic = self._tally.moved_by(Traffic())
        return make(self.traits.store or "auto", parts.team, parts.layout.size, parts.allocator, copies, traffic)

    def _source(self, parts: Parts) -> WorkSource:
        """Return what assigns steps to this rank; by default each worker computes its own share of every step."""
        return StaticShards(parts.sampler, parts.cluster.halt, self._arena, self.traits.same_each_step)

    def open(self, update: Updater) -> None:
        """Copy rank 0's parameters to every rank. All ranks must call."""
        self._update = update
        self._parts.collective.broadcast(self._arena.params)

    def turns(self, n_steps: int) -> Iterator[tuple[int, int | None]]:
        """Yield the turns of this rank in an epoch: a step, and the worker whose share of it to compute, or None.

        Before requesting the next turn, the caller writes this turn's gradients to the arena and calls :meth:`step`.
        """
        worker = self._parts.team.worker
        for step in steps(self.source, n_steps):
            yield step, worker
            if worker is not None and self.traits.same_each_step:
                self._tally.exchanged(0)

    def step(self, n_samples: int, lr: float, step: int) -> bool:
        """Finish a turn; return True if an exchange was part of it. All ranks call.

        Arguments as in :class:`SyncMode`.
        """
        raise NotImplementedError

    def drain(self) -> None:
        """End an epoch: complete what is pending, and give every rank the run's parameters. All ranks must call."""

    def state(self) -> Snapshot:
        """Return what a checkpoint holds, on rank 0, and on ranks that hold it, too.

        To call between steps, or once no rank trains after one died.
        """
        params, state = self._arena.complete
        return Snapshot(params, list(state))

    @property
    def holds_state(self) -> bool:
        """True if this rank could go on as rank 0, when that has died: it has the state of the last complete step."""
        arena, team = self._arena, self._parts.team
        return self.traits.same_each_step and (arena.shared or team.applies_updates or arena.of_server is not None)

    @property
    def progress(self) -> Callable[[], None] | None:
        """Function that lets MPI serve other ranks from this rank's memory; None if they need no MPI to reach it."""
        return self._store.progress if self._store else None

    def close(self) -> None:
        """End a run. All ranks must call."""
        if self._store:
            self._store.close()

    def _fill(self, store: Store) -> None:
        """Open a store of one copy, filled with rank 0's parameters. All ranks must call."""
        if self._parts.team.comm.rank == 0:
            store.params[0][:] = self._arena.params
        store.open()

    def _meet_at(self, store: Store) -> None:
        """Wait until all ranks of a store have arrived, and count that as waiting."""
        began = CLOCK.now()
        if isinstance(self.source, SampleQueue) and self._parts.team.comm.rank == 0:
            self.source.stop()  # before rest() resets the count of drawn numbers
        store.rest()
        self._tally.waited_since(began)


class UserMode(Mode):
    """Adapter of a user's own mode, which has the two methods of :class:`SyncMode`."""

    def __init__(self, inner: SyncMode):
        if not all(hasattr(inner, name) for name in ("server", "open", "step")):
            raise UserError(
                f"a sync mode must have server, open and step, got {inner!r}; see psframe.sync.base.SyncMode"
            )
        super().__init__(
            Traits("step", inner.server, averages_statistics=True, overlaps=getattr(inner, "overlaps", False))
        )
        self.inner = inner

    def _allocate(self, parts: Parts) -> Arena:
        # it may write parameters in ways of its own
        return super()._allocate(replace(parts, keeping=replace(parts.keeping, bfloat16=False)))

    def open(self, update: Updater) -> None:
        self.inner.open(self._arena, self._parts.collective, update)

    def step(self, n_samples: int, lr: float, step: int) -> bool:
        self.inner.step(n_samples, lr, step)
        return True

    def drain(self) -> None:
        """Raise UserError on all ranks if their parameters differ, where the collective moves any."""
        if not self._parts.collective.traits.moves_data:
            return
        own = compiled.elementwise.checksum(self._arena.params)
        sums = self._parts.cluster.allgather_in_time(str(own).encode())
        if len(set(sums)) > 1:
            raise AgreedError(
                f"sync.mode: {type(self.inner).__name__}.step must leave all ranks with the same parameters, got "
                f"{len(set(sums))} different ones of {len(sums)} ranks; derive from psframe.sync.averaging.Averaging, "
                "or from psframe.sync.base.Mode"
            )
