"""``sync_ps``: the synchronous parameter server. Rank 0 gathers gradients, updates, broadcasts parameters."""

from typing import Literal

from psframe.arena import Arena
from psframe.collectives.base import Collective
from psframe.optim import Updater


class SyncPS:
    """``w <- update(w, sum_k g_k / n)`` on rank 0, then every worker's ``w`` is rank 0's.

    Parameters
    ----------
    server : str
        ``dedicated``: rank 0 computes no gradient (Woo et al. 2020). ``colocated``: it is a worker too.
    """

    def __init__(self, *, server: Literal["dedicated", "colocated"] = "dedicated"):
        self.server = server

    def open(self, arena: Arena, collective: Collective, update: Updater) -> None:
        self.arena, self.collective, self.update = arena, collective, update
        collective.broadcast(arena.params)

    def step(self, n_samples: int, lr: float, step: int) -> None:
        for segment, gradient in self.collective.gather_mean(self.arena.grads, n_samples):
            self.update(segment, gradient, lr, step)
        self.collective.broadcast(self.arena.params)
