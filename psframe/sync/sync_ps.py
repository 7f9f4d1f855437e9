"""``sync_ps`` (:class:`SyncPS`): synchronous parameter server, which gathers gradients and broadcasts parameters."""

from dataclasses import replace
from typing import TYPE_CHECKING, Literal, cast

import numpy as np

from psframe.cluster.roles import Roles
from psframe.config.registry import Count, PositiveInt
from psframe.errors import UserError
from psframe.optim import Updater
from psframe.sync.backup_workers import BackupWorkers
from psframe.sync.base import Mode
from psframe.sync.traits import SYNCHRONOUS

if TYPE_CHECKING:
    from psframe.collectives.sharded import Sharded

#: bits of the first number that rank 0 broadcasts after an unsound step: a NaN that no computation produces
NONFINITE_MARK = 0x7FC5AFE1


class SyncPS(Mode):
    """``w <- update(w, sum_k g_k / n)`` on rank 0, or on a collective's reducers, then a broadcast of ``w``."""

    def __init__(self, server: str):
        super().__init__(replace(SYNCHRONOUS, server=server))

    def step(self, n_samples: int, lr: float, step: int) -> bool:
        collective, arena = self._parts.collective, self._arena
        for segment, gradient in collective.gather_mean(arena.grads, n_samples):
            self._update(segment, gradient, lr, step)
        if arena.shared:
            collective.broadcast(arena.params)
            return True
        if self._parts.team.applies_updates:
            arena.end_step()
        if arena.nonfinite:
            arena.new_published.view(np.uint32)[0] = NONFINITE_MARK
        news = arena.new_published if arena.nonfinite else arena.published
        collective.broadcast(news)
        # informs the workers without another message
        if arena.drops_unsound and news.view(np.uint32)[0] == NONFINITE_MARK:
            arena.nonfinite = True
            collective.broadcast(arena.published)
        if not self._parts.team.applies_updates:
            arena.end_step()
        return True


class ShardedPS(Mode):
    """The same with several servers, each of which updates a share of ``w`` and has the optimizer state of that share.

    For ``n_servers`` above 1, ``psframe.collectives.make`` gives a :class:`Sharded` in place of ``buffer``.
    After a non-finite gradient the run fails at the end of the epoch: no server learns in time of another one's share.
    """

    def __init__(self, server: str, n_servers: int):
        super().__init__(replace(SYNCHRONOUS, server=server, n_servers=n_servers, survives=False, drops="nothing"))

    def check(self, roles: Roles) -> None:
        server, n_servers = self.traits.server, self.traits.n_servers
        limit = roles.n_ranks - (server == "dedicated")
        if n_servers > limit:
            raise UserError(
                f"sync.servers must leave a worker, and be at most {limit} of {roles.n_ranks} ranks under sync.server="
                f"{server}, got {n_servers}; give fewer, or start more ranks"
            )

    @property
    def _sharded(self) -> "Sharded":
        return cast("Sharded", self._parts.collective)

    def open(self, update: Updater) -> None:
        super().open(update)
        self._sharded.scatter_state(self._arena.state)

    def step(self, n_samples: int, lr: float, step: int) -> bool:
        for segment, gradient in self._sharded.gather_mean(self._arena.grads, n_samples):
            self._update(segment, gradient, lr, step)
        if self._parts.team.applies_updates:
            self._arena.end_step()
        self._sharded.publish(self._arena.params)
        return True

    def drain(self) -> None:
        self._sharded.gather_state(self._arena.state)


def sync_ps(
    *,
    server: Literal["dedicated", "colocated"] = "dedicated",
    servers: PositiveInt = 1,
    backup_workers: Count = 0,
    store: str = "auto",
) -> Mode:
    """Return the mode: :class:`SyncPS`, :class:`ShardedPS`, or with backup workers :class:`BackupWorkers`.

    Parameters
    ----------
    server : str
        ``dedicated``: servers compute no gradients (Woo et al. 2020). ``colocated``: they are workers too.
    servers : int
        Number of servers, each with a share of the parameters: rank 0 and others, on different nodes if there are
        enough (Li et al. 2014; Jiang et al. 2020). Several need ``collective: buffer``, which is then the default.
    backup_workers : int
        Number of a step's gradients that are not waited for, and dropped on arrival (Chen et al. 2016). Gradients then
        go through ``store`` (``auto``, ``shared`` or ``window``), not through a collective.

    Raises
    ------
    UserError
        If backup workers are combined with a colocated server, or with several servers.
    """
    if not backup_workers and servers == 1:
        return SyncPS(server)
    if not backup_workers:
        return ShardedPS(server, servers)
    if servers > 1:
        raise UserError(
            f"sync.servers must be 1 with backup workers, got {servers} and sync.backup_workers={backup_workers}; "
            "give one of both"
        )
    if server != "dedicated":
        raise UserError(
            f"sync.backup_workers must have a dedicated server, got sync.server={server}; give sync.server=dedicated"
        )
    return BackupWorkers(backup_workers, store)
