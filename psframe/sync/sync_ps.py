"""``sync_ps``: the synchronous parameter server. Rank 0 gathers gradients, updates, broadcasts parameters."""

from typing import Literal

import numpy as np

from psframe.errors import UserError
from psframe.memory.gates import DEADLINE_S, Wait
from psframe.registry import Count, Positive
from psframe.sync.base import Mode
from psframe.sync.closing import Closing

#: bits of the first number that rank 0 broadcasts where a step is not sound: a NaN that no computation makes
WILD = 0x7FC5AFE1


class SyncPS(Mode):
    """``w <- update(w, sum_k g_k / n)`` on rank 0, then every worker's ``w`` is rank 0's."""

    overlaps = survives = guarded = any_workers = True
    on_nan = ("stop", "skip", "rollback")

    def __init__(self, server: str, wait: Wait = "auto", deadline_s: float = DEADLINE_S):
        super().__init__(wait, deadline_s)
        self.server = server

    def step(self, n_samples: int, lr: float, step: int) -> None:
        for segment, gradient in self.collective.gather_mean(self.arena.grads, n_samples):
            self.update(segment, gradient, lr, step)
        arena = self.arena
        if arena.shared:
            self.collective.broadcast(arena.params)
            return
        if self.parts.team.applies:
            arena.close()
        if arena.wild:
            arena.new_params.view(np.uint32)[0] = WILD
        news = arena.new_params if arena.wild else arena.params
        self.collective.broadcast(news)
        if arena.guarded and news.view(np.uint32)[0] == WILD:  # the workers hear of it without another message
            arena.wild = True
            self.collective.broadcast(arena.params)


def sync_ps(
    *,
    server: Literal["dedicated", "colocated"] = "dedicated",
    backup_workers: Count = 0,
    store: str = "auto",
    wait: Wait = "auto",
    deadline_s: Positive = DEADLINE_S,
) -> Mode:
    """Return the mode.

    Parameters
    ----------
    server : str
        ``dedicated``: rank 0 computes no gradient (Woo et al. 2020). ``colocated``: it is a worker too.
    backup_workers : int
        How many of a step's gradients are not waited for, and dropped when they come (Chen et al. 2016). Gradients then
        go through ``store`` (``auto``, ``shared`` or ``window``), not through a collective.
    wait, deadline_s
        As in :class:`psframe.sync.base.SyncMode`.

    Raises
    ------
    UserError
        Backup workers without a dedicated server.
    """
    if not backup_workers:
        return SyncPS(server, wait, deadline_s)
    if server != "dedicated":
        raise UserError(
            f"sync.backup_workers must have a dedicated server, got sync.server={server}; give sync.server=dedicated"
        )
    return Closing(backup_workers, store, wait, deadline_s)
