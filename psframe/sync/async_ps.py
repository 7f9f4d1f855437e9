"""``async_ps`` (:class:`AsyncPS`): rank 0 applies each gradient as it arrives, to parameters changed by others since.

Asynchronous SGD, Downpour SGD (Dean et al. 2012, algorithm 7.1), stale synchronous parallel (Ho et al. 2013), and delay
compensation (Zheng et al. 2017).
"""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from psframe import compiled
from psframe.config.registry import Count, NonNegative, PositiveInt
from psframe.errors import UserError
from psframe.memory.arena import Arena
from psframe.sync.backup_workers import BackupWorkers
from psframe.sync.base import Mode, Parts
from psframe.sync.server_mode import ServerMode
from psframe.sync.stores.mailbox import RATE, SAMPLES, STEP
from psframe.sync.work_source import SampleQueue, StaticShards, WorkSource

FREE = 1 << 30  # a staleness bound that is never reached


class OwnPace(StaticShards):
    """Static shards whose workers are at different steps; after a loss, all steps that any here has begun are done."""

    def salvaged(self) -> int:
        return self.sampler.done_after(self.halt.begun)


class AsyncPS(ServerMode):
    """``w <- update(w, g_k(w'))``, where worker k pulled ``w'`` last; batches go to the next worker that is free.

    - ``pull_every: p`` and ``push_every: q``: a worker pulls before every p-th of its steps, does local steps of plain
      SGD in between, and pushes the sum of q mean gradients.
    - ``staleness: s``: worker k waits before its step c until every worker has done c - s steps. Batches are assigned
      in advance. A gradient is weighted by the worker's part of the step's samples: it is applied at the learning rate
      times ``n_k / n``.
    - ``compensate``: ``g + compensation * g * g * (w - w')`` in place of g, the diagonal of a Taylor expansion.

    Staleness in the record: number of updates between the pull and the use of a gradient; with a bound, the number of
    steps that the slowest worker was behind when the step began.
    """

    def __init__(
        self,
        pull_every: int,
        push_every: int,
        staleness: int | None,
        compensation: float,
        store: str,
    ):
        super().__init__(store)
        self.pull_every, self.push_every, self.compensation = pull_every, push_every, compensation
        self.bounded, self.bound = staleness is not None, FREE if staleness is None else staleness
        self.rows = 2 if compensation else 1
        self.waits = self.bounded

    def _allocate(self, parts: Parts) -> Arena:
        arena = super()._allocate(parts)
        if parts.team.worker is None:
            self.means = [compiled.elementwise.Mean([post[0]]) for post in self.mailbox.inbox]
            self.clocks, self.waiting = [0] * self.n_workers, [False] * self.n_workers
            self.posts_a_turn = max(1, round(self.n_workers / self.push_every))
            self.correction = parts.allocator.zeros(self.size if self.compensation else 0, np.float32, "exchange")
            return arena
        alone = self.push_every > 1 or self.pull_every > 1
        self.scaled, self.kept = parts.allocator.zeros((2, self.size if alone else 0), np.float32, "exchange")
        self.n_kept = self.turn = self.pulled = self.oldest = 0
        return arena

    def _source(self, parts: Parts) -> WorkSource:
        if not self.bounded:
            return SampleQueue(self._store.tickets, parts.sampler)
        return OwnPace(parts.sampler, parts.cluster.halt, self._arena, same_each_step=False)

    def worker_turns(self, n_steps: int) -> Iterator[tuple[int, int | None]]:
        worker = self._parts.team.worker
        assert worker is not None
        sampler = self._parts.sampler
        own_turns = ((step, worker, sampler.size_of(step, worker)) for step in range(n_steps))
        queue = self.source
        for step, share, n_own in queue.turns(n_steps) if isinstance(queue, SampleQueue) else own_turns:
            self.n_own = n_own
            if self.bounded:
                # rank 0 replies with the number of steps that the slowest worker has done in this epoch
                self._tally.saw(step - self._settled() if step else 0)
            if self.turn % self.pull_every == 0:
                self.pulled = self._pull()
            self.turn += 1
            if not self.source.may_begin(step):
                return
            yield step, share

    def report(self, n_samples: int, lr: float, step: int) -> None:
        grads, params = self._arena.grads, self._arena.params
        if self.pull_every == self.push_every == 1:
            share = self.n_own / n_samples if self.bounded else 1
            self._push(grads, self.n_own, lr * share, step, self.pulled)
            return
        np.multiply(grads, np.float32(1 / self.n_own), out=self.scaled)
        if not self.n_kept:
            self.oldest = self.pulled
        self.kept += self.scaled
        self.n_kept += 1
        self.scaled *= np.float32(lr)
        params -= self.scaled
        if self.n_kept == self.push_every:
            self._push(self.kept, 1, lr, step, self.oldest)
        self.last = lr, step

    def _push(self, gradient: np.ndarray, over: int, lr: float, step: int, pulled: int) -> None:
        self._tally.pushed()
        self.post((gradient, self._arena.params)[: self.rows], over, lr, step, pulled, 0)
        if self.n_kept:
            self.kept[:], self.n_kept = 0, 0

    def take(self, worker: int) -> None:
        note = self.mailbox.headers[worker]
        n_samples, step = int(note[SAMPLES]), int(note[STEP])
        if not self.bounded:
            self._tally.saw(self.age(worker))
        if n_samples and not self.is_dropped(
            worker, step
        ):  # under a bound a worker's share of the last step may be empty
            mean = self.means[worker].over(n_samples)
            if self.compensation:
                self._compensate(mean, *self.mailbox.inbox[worker])
            # step number for the optimizer: about the number of updates before this one
            self.apply(mean, float(note[RATE]), (step - 1) * self.n_workers // self.push_every + 1, step)
        self.clocks[worker] += 1
        self.waiting[worker] = True
        self._let_go()

    def _compensate(self, mean: Any, gradient: np.ndarray, basis: np.ndarray) -> None:
        """``g <- g + lambda g * g * (w - w')``, in place in the posted gradient."""
        mean.into(gradient)
        mean.over(1)
        np.subtract(self._arena.params, basis, out=self.correction)
        self.correction *= gradient
        self.correction *= gradient
        self.correction *= np.float32(self.compensation)
        gradient += self.correction

    def _let_go(self) -> None:
        """Grant every post whose worker is within the bound."""
        slowest = min(self.clocks)
        for worker, waits in enumerate(self.waiting):
            if waits and self.clocks[worker] - slowest <= self.bound:
                self.waiting[worker] = False
                self.mailbox.ack(worker, slowest)

    def drain(self) -> None:
        if self._parts.team.worker is None:
            self.clocks = [0] * self.n_workers
        elif self.n_kept:
            self._push(self.kept, 1, *self.last, self.oldest)
        self.turn = 0
        super().drain()


def async_ps(
    *,
    pull_every: PositiveInt = 1,
    push_every: PositiveInt = 1,
    staleness: Count | Literal["none"] | None = None,
    compensate: bool = False,
    compensation: NonNegative = 0.04,
    store: str = "auto",
) -> Mode:
    """Return the mode: :class:`AsyncPS`, or with a staleness of 0 a synchronous one.

    Parameters
    ----------
    pull_every, push_every : int
        Steps of a worker between two pulls, and between two pushes.
    staleness : int, optional
        Most steps that a worker may be ahead of the slowest; 0: ``sync_ps``, to the bit; None or ``none``: unbounded.
    compensate : bool
        True to correct gradients for the change of the parameters since the pull, with factor ``compensation``, the
        lambda of Zheng et al. 2017.
    store : str
        ``auto``, ``shared``, ``window`` or ``my_module:attr``; see ``psframe.sync.stores``.

    Raises
    ------
    UserError
        If a staleness or compensation is combined with ``pull_every`` or ``push_every`` other than 1.
    """
    staleness = None if staleness == "none" else staleness
    if (staleness is not None or compensate) and (pull_every, push_every) != (1, 1):
        key = "staleness" if staleness is not None else "compensate"
        raise UserError(
            f"sync.{key} is for steps that are all pulled and pushed, got pull_every={pull_every} and "
            f"push_every={push_every}; drop one or the other"
        )
    if staleness == 0:
        return BackupWorkers(0, store)
    return AsyncPS(pull_every, push_every, staleness, compensation if compensate else 0.0, store)
