"""``allreduce``: no server. Every rank is a worker, and all apply the same mean to the same parameters."""

from psframe.arena import Arena
from psframe.collectives.base import Collective
from psframe.optim import Updater


class AllReduce:
    """``w <- update(w, sum_k g_k / n)`` on every rank."""

    server: str | None = None

    def open(self, arena: Arena, collective: Collective, update: Updater) -> None:
        self.arena, self.collective, self.update = arena, collective, update
        collective.broadcast(arena.params)

    def step(self, n_samples: int, lr: float, step: int) -> None:
        for segment, gradient in self.collective.allreduce_mean(self.arena.grads, n_samples):
            self.update(segment, gradient, lr, step)
