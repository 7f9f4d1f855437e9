"""Parameter server that ends a step with its first gradients (:class:`BackupWorkers`; Chen et al. 2016, algorithm 4).

Without backup workers it waits for all, and computes the same mean as ``sync_ps``, to the bit.
"""

from collections.abc import Iterator

from psframe import compiled
from psframe.cluster.roles import Roles
from psframe.errors import UserError
from psframe.memory.arena import Arena
from psframe.sync.base import Parts
from psframe.sync.server_mode import ServerMode
from psframe.sync.stores.mailbox import RATE, SAMPLES, STEP


class BackupWorkers(ServerMode):
    """``w <- update(w, sum_k g_k / sum_k n_k)`` over the first W - b workers k that have computed ``g_k`` from this
    ``w``.

    Gradients of an older ``w`` are dropped, and their workers continue with the newest ``w`` and their share of that
    step. An epoch has as many updates as without backup workers, but uses fewer samples: it lacks the dropped ones, and
    the shares of steps that ended before a worker began them.

    Parameters
    ----------
    backup_workers : int
        b.
    """

    waits = True

    def __init__(self, backup_workers: int, store: str):
        super().__init__(store, averages_statistics=True)
        self.backup_workers = backup_workers

    def check(self, roles: Roles) -> None:
        if self.backup_workers >= roles.n_workers:
            raise UserError(
                f"sync.backup_workers must be fewer than the workers, got {self.backup_workers} of {roles.n_workers}; "
                "lower it or start more ranks"
            )

    def _allocate(self, parts: Parts) -> Arena:
        arena = super()._allocate(parts)
        if parts.team.worker is None:
            self.arrived: list[int] = []  # workers whose gradients of the current clock have arrived
            self.wanted = self.n_workers - self.backup_workers
        return arena

    def worker_turns(self, n_steps: int) -> Iterator[tuple[int, int | None]]:
        worker = self._parts.team.worker
        while True:
            self._settled()
            self.pulled = self._pull()
            step = (self.pulled - self.began) % (1 << 32)
            if step >= n_steps:
                return
            assert worker is not None
            self.n_own = self._parts.sampler.size_of(step, worker)
            if not self.source.may_begin(step):
                return
            yield step, worker

    def report(self, n_samples: int, lr: float, step: int) -> None:
        self._tally.pushed()
        self.post((self._arena.grads,), self.n_own, lr, step, self.pulled, 0)

    def take(self, worker: int) -> None:
        note = self.mailbox.headers[worker]
        if self.age(worker):
            self._tally.dropped += 1
            self.mailbox.ack(worker)
            return
        self.arrived.append(worker)
        if len(self.arrived) == self.wanted:
            self._close(float(note[RATE]), int(note[STEP]))

    def _close(self, lr: float, step: int) -> None:
        first = sorted(self.arrived)
        used = [worker for worker in first if not self.is_dropped(worker, step)]
        n_samples = int(self.mailbox.headers[used, SAMPLES].sum())
        if used:
            mean = compiled.elementwise.Mean([self.mailbox.inbox[worker, 0] for worker in used])
            self.apply(mean.over(max(1, n_samples)), lr, step, step)
        else:
            self.keep()
        self._tally.used += n_samples
        for worker in first:
            self._tally.saw(0)
            self.mailbox.ack(worker)
        self.arrived.clear()
