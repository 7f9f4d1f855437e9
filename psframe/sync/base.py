"""The contract of a sync mode."""

from collections.abc import Iterator, Sequence
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
from psframe.sync.sample_queue import Draw
from psframe.sync.sampler import Sampler
from psframe.sync.stores.base import Store
from psframe.sync.tally import Tally
from psframe.sync.traits import Traits


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


class Mode:
    """A sync mode; here what a synchronous one does that does not say otherwise.

    Attributes
    ----------
    traits : Traits
    met : bool
        Whether all have exchanged something in the last step, where they do.
    store : Store or None
        The store that it uses, once :meth:`build` was called.
    draw : Draw or None
        Where batches come from that are not dealt out beforehand, once :meth:`build` was called.
    tally : Tally
        What it did.
    """

    met = True
    store: Store | None = None
    draw: Draw | None = None
    version = 0  # steps that the arena had taken when the epoch began
    parts: Parts

    def __init__(self, traits: Traits):
        self.traits, self.tally = traits, Tally()

    def judge(self, team: Team, group: Group) -> None:
        """UserError where these ranks cannot run it. All ranks call."""

    def build(self, parts: Parts) -> Arena:
        """Take memory, and return the vectors that this rank computes in. No rank waits for another here."""
        self.parts, self.tally = parts, Tally(parts.trace)
        self.arena = self.allocate(parts)
        return self.arena

    def allocate(self, parts: Parts) -> Arena:
        """Return the vectors that this rank computes in, and take what else the mode needs."""
        return parts.collective.arena(parts.layout, parts.optimizer.n_state, parts.keeping, parts.trace)

    def open(self, collective: Base, update: Updater) -> None:
        """Take the other parts, and make every rank's parameters those of rank 0. All ranks must call."""
        self.collective, self.update = collective, update
        collective.broadcast(self.arena.params)

    def turns(self, n_steps: int) -> Iterator[tuple[int, int | None]]:
        """Yield, for an epoch, what this rank does next: a step of it, and the worker whose share it computes, or None.

        What is yielded is computed, its gradients are in the arena, and :meth:`step` has been called, before the next
        is asked for.
        """
        worker = self.parts.team.worker
        for step in range(n_steps):
            yield step, worker
            if worker is not None:
                self.tally.saw(0)
                self.tally.pulls += 1
                self.tally.pushes += 1

    def step(self, n_samples: int, lr: float, step: int) -> None:
        """Do what follows a turn; all ranks call. Arguments as in :class:`SyncMode`."""
        raise NotImplementedError

    def may(self, step: int) -> bool:
        """Whether the turn of a step that :meth:`turns` has yielded may begin; if not, it was the last."""
        return self.draw is not None or self.parts.cluster.halt.may(step, self.traits.same_each_step)

    def stop(self) -> None:
        """Ask all ranks to end the epoch with the steps that have begun. Rank 0."""
        (self.draw or self.parts.cluster.halt).stop()

    def done(self) -> int:
        """Return how many samples of the epoch are done, when :meth:`drain` has returned. Rank 0."""
        return self.draw.done() if self.draw else self.parts.sampler.done_after(self.parts.cluster.halt.begun)

    def begin(self) -> None:
        """Begin an epoch, or what is left of one, on this rank."""
        self.version = self.arena.taken
        if self.draw:
            self.draw.begin()

    def salvaged(self) -> tuple[int, np.ndarray, list[np.ndarray]]:
        """Return what to go on from when a worker has died in an epoch: samples done, parameters and rows of state.

        Rank 0 calls, when no rank trains any more.
        """
        if self.draw:
            self.draw.stop()
            return self.draw.done(), self.arena.params, self.state()
        return self.parts.sampler.done_after(self.arena.taken - self.version), self.arena.params, self.state()

    def drain(self) -> None:
        """End an epoch: finish what is under way, and make every rank's parameters the run's. All must call."""

    def fill(self, store: Store) -> None:
        """Open a store of one copy with rank 0's parameters in it. All ranks must call."""
        if self.parts.team.comm.rank == 0:
            store.params[0][:] = self.arena.params
        store.open()

    @property
    def needs_progress(self) -> bool:
        """Whether rank 0 computes while MPI serves others from its memory; once :meth:`build` was called."""
        return self.store is not None and not self.store.nearby and self.traits.server is None

    def progress(self) -> None:
        """Let MPI do so; called between layers where it is needed."""
        if self.store:
            self.store.progress()

    def rest(self, store: Store) -> None:
        """Wait until all who use a store are here, and count that as waiting."""
        began = perf_counter()
        if self.draw and self.parts.team.comm.rank == 0:
            self.draw.stop()  # the store forgets how many there were
        store.rest()
        self.tally.waited_since(began)

    def close(self) -> None:
        """End a run. All ranks must call."""
        if self.store:
            self.store.close()

    def clear(self) -> None:
        """Begin to count anew."""
        self.tally.clear()
        for traffic in self.traffics():
            traffic.clear()

    def state(self) -> list[np.ndarray]:
        """Return what a checkpoint holds beside the parameters: rows (S,), as rank 0 has them."""
        return list(self.arena.state)

    def traffics(self) -> Sequence[Traffic]:
        """Return the counts of what moved otherwise than by the collective and ``update``."""
        return [self.store.traffic] if self.store else []


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

    def open(self, collective: Base, update: Updater) -> None:
        self.inner.open(self.arena, collective, update)

    def step(self, n_samples: int, lr: float, step: int) -> None:
        self.inner.step(n_samples, lr, step)
