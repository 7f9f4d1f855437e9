"""Base class of the modes with local parameters per worker, averaged every few steps (:class:`Averaging`).

An average is an optimizer step on global parameters ``w``, with the mean of ``w - w_k`` as its gradient (Wang et al.
2020, SlowMo). It is therefore fused with the sum of any collective, and its bits do not depend on the collective.
"""

from collections.abc import Iterator

import numpy as np
from mpi4py import MPI

from psframe import compiled
from psframe.memory.arena import Arena
from psframe.optim import SGD, Updater
from psframe.sync.base import Mode, Parts, Snapshot
from psframe.sync.traits import Traits
from psframe.sync.work_source import StaticShards, steps


class AveragedShards(StaticShards):
    """Static shards; after a loss, only those count that were done at the last average."""

    averaged_at = 0  # steps of the epoch done at the last average

    def begin(self) -> None:
        super().begin()
        self.averaged_at = 0

    def salvaged(self) -> int:
        return self.sampler.done_after(self.averaged_at)


class Averaging(Mode):
    """Local steps from ``w_k_0``, by default ``w``; then ``w <- outer(w, mean_k(w_k_0 - w_k))`` and ``w_k <- w_k_0``.

    An epoch ends with an average, with ``w_k <- w``, and with the mean of the workers' optimizer states, so that a
    checkpoint of ``w`` and one state is complete. Staleness in the record: number of local steps between the last
    average and the parameters of a gradient.

    Attributes
    ----------
    every : int
        Steps between two averages.
    outer : SGD
        The optimizer of the global parameters.
    outer_lr : float
        Its learning rate, which no schedule scales.
    """

    source: AveragedShards
    every: int
    outer: SGD
    outer_lr: float
    n_outer = 0  # rows of state of ``outer``

    def __init__(self, every: int):
        super().__init__(Traits("period", updates_shared=False, averages_statistics=True, survives=True))
        self.every = every

    def _allocate(self, parts: Parts) -> Arena:
        self.n_workers = parts.team.n_workers
        self.global_arena = parts.collective.arena(parts.layout, self.n_outer, parts.keeping, parts.tally.trace)
        self.kept = parts.allocator.zeros((self.n_outer, parts.layout.size), np.float32, "exchange")
        self.since = self.at = 0
        self.drains = False
        return Arena(parts.layout, parts.n_state, parts.allocator)

    def open(self, update: Updater) -> None:
        self._update = update
        self.mean = compiled.elementwise.Mean([self._arena.grads])
        self.whole = slice(0, self._parts.layout.size)
        self.update_global = Updater(self.outer, self.global_arena)
        self._tally.moved_by(self.update_global.traffic)
        group, comm = self._parts.group, self._parts.team.comm
        comm.Bcast(self._arena.params)
        among = group.leaders if self.global_arena.shared else comm
        for row in self.global_arena.state if among else ():  # of a continued run
            among.Bcast(row)
        self._set(self._arena.params, self.global_arena.state)

    def _set(self, params: np.ndarray, state: np.ndarray) -> None:
        """Set the global parameters (S,) and their state (n_outer, S), from arguments that are equal on all ranks."""
        arena, barrier = self.global_arena, self._parts.cluster.barrier
        if arena.shared:
            barrier()  # until nobody reads the old values
        if not arena.shared or self._parts.group.leads:
            arena.params[:], arena.state[:] = params, state
        if arena.shared:
            barrier()

    def begin_local_steps(self) -> None:
        """Set the worker's parameters to the start of its next local steps."""
        self._arena.params[:] = self.global_arena.params

    def local_start(self) -> np.ndarray:
        """Return the parameters (S,) at which the local steps began."""
        return self.global_arena.params

    def before_exchange(self, difference: np.ndarray) -> None:
        """Use this worker's ``w_k_0 - w_k`` (S,) before the collective overwrites it."""

    def _source(self, parts: Parts) -> StaticShards:
        return AveragedShards(parts.sampler, parts.cluster.halt, self._arena, same_each_step=False)

    def turns(self, n_steps: int) -> Iterator[tuple[int, int | None]]:
        self.begin_local_steps()
        for step in steps(self.source, n_steps):
            self.at = step
            yield step, self._parts.team.worker

    def step(self, n_samples: int, lr: float, step: int) -> bool:
        sampler = self._parts.sampler
        if n_own := sampler.size_of(self.at, self._parts.team.worker or 0):
            self._update(self.whole, self.mean.over(n_own), lr, step)
        self.since += 1
        if self.since < self.period(step):
            return False
        self._average_params(step)
        self.begin_local_steps()
        return True

    def period(self, step: int) -> int:
        """Return the number of steps between averages, at this step of the run."""
        return self.every

    def _average_params(self, step: int) -> None:
        """``w <- outer(w, mean_k(w_k_0 - w_k))``."""
        for lag in range(self.since):
            self._tally.saw(lag)
        self._tally.pulled()
        self._tally.pushed()
        self.since = 0
        np.subtract(self.local_start(), self._arena.params, out=self.global_arena.grads)
        self.before_exchange(self.global_arena.grads)
        for segment, mean in self._parts.collective.allreduce_mean(self.global_arena.grads, self.n_workers):
            self.update_global(segment, mean, self.outer_lr, step)
        self._take()
        self.source.averaged_at = self.at + 1

    def _take(self) -> None:
        """Make the new global parameters current, unless the collective has done so."""
        if not self.global_arena.shared:
            self.global_arena.commit()

    def state(self) -> Snapshot:
        if self.drains:  # the states being averaged pass through the global parameters
            return Snapshot(self._arena.params, [*self._arena.state, *self.kept])
        return Snapshot(self.global_arena.params, [*self._arena.state, *self.global_arena.state])

    @property
    def holds_state(self) -> bool:
        return True  # its own, with the averages that all have

    def drain(self) -> None:
        if self.since:
            self._average_params(0)
        self._arena.params[:] = self.global_arena.params
        if len(self._arena.state):
            self.kept[:] = self.global_arena.state
            self.drains = True
            for row in self._arena.state:
                self._average(row)
            self._set(self._arena.params, self.kept)
        self.drains = False

    def _average(self, vector: np.ndarray) -> None:
        """``v_k <- mean_k v_k``, through the global parameters, which the caller restores."""
        # a codec's error feedback would add the residual of this vector to later gradients
        if not self._parts.collective.traits.exact:
            self._parts.team.comm.Allreduce(MPI.IN_PLACE, vector)
            vector /= np.float32(self.n_workers)
            return
        self.global_arena.grads[:] = vector
        for segment, mean in self._parts.collective.allreduce_mean(self.global_arena.grads, self.n_workers):
            target = self.global_arena.new_params[segment]
            if isinstance(mean, np.ndarray):
                target[:] = mean
            else:
                mean.into(target)
        self._take()
        vector[:] = self.global_arena.params
