"""``hybrid`` (:class:`Hybrid`): synchronous in a group, elastic between groups (ShmCaffe, Ahn et al. 2018)."""

from collections.abc import Iterator
from typing import Literal

from psframe.config.registry import PositiveInt
from psframe.memory.arena import Arena
from psframe.optim import Updater
from psframe.sync.base import Mode, Parts
from psframe.sync.elastic import Elastic, Force
from psframe.sync.stores.base import Store
from psframe.sync.traits import Traits
from psframe.sync.work_source import steps


class Hybrid(Mode):
    """``x <- update(x, sum_k g_k / n)`` over the ranks k of a group; every ``period`` steps ``x`` and the centre move
    towards each other, as in ``easgd``.

    Groups are asynchronous. Batches are assigned in advance, since the ranks of a group wait for each other anyway. An
    epoch ends with an exchange by all groups, and with every ``x`` at the centre.

    Parameters
    ----------
    group_size : int or 'auto'
        Ranks of a group, all on one node; ``auto``: those of a node, or half of them if there is only one.
    period : int
        Steps between two exchanges.
    beta : float
        The elastic force is beta / G for each of G groups.
    store : str
        As in :func:`psframe.sync.easgd.easgd`.
    """

    def __init__(
        self,
        *,
        group_size: PositiveInt | Literal["auto"] = "auto",
        period: PositiveInt = 8,
        beta: Force = 0.9,
        store: str = "auto",
    ):
        super().__init__(Traits("none", store=store, group_size=group_size))
        self.period, self.beta = period, beta

    def _allocate(self, parts: Parts) -> Arena:
        arena = super()._allocate(parts)
        self._store: Store = self._make_store(parts)
        if parts.group.leads:
            self.exchange = Elastic(
                self._store, parts.layout.size, parts.allocator, self.beta / parts.group.n_groups, self._tally
            )
        return arena

    def open(self, update: Updater) -> None:
        self._update = update
        self._fill(self._store)
        self._adopt()

    def _adopt(self) -> None:
        """Copy the centre's parameters, while no rank trains."""
        if self._parts.group.leads:
            self.exchange.seen = self._store.pull(self._arena.params)
        self._tell()
        self._store.rest()

    def _tell(self) -> None:
        """Give the group's ranks the parameters that its first rank has changed."""
        self._parts.group.cluster.barrier()
        if not self._arena.shared:
            self._parts.collective.broadcast(self._arena.params)

    def turns(self, n_steps: int) -> Iterator[tuple[int, int | None]]:
        for step in steps(self.source, n_steps):
            self.at = step
            yield step, self._parts.team.worker

    def step(self, n_samples: int, lr: float, step: int) -> bool:
        for segment, gradient in self._parts.collective.allreduce_mean(self._arena.grads, self._samples()):
            self._update(segment, gradient, lr, step)
        if step % self.period == 0:
            if self._parts.group.leads:
                self.exchange(self._arena.params)
            self._tell()
        return True

    def _samples(self) -> int:
        """Return the number of samples of the group's ranks in this step, at least 1."""
        sampler, members = self._parts.sampler, self._parts.group.members
        return max(1, sum(sampler.size_of(self.at, worker) for worker in members))

    def drain(self) -> None:
        if self._parts.group.leads:
            self.exchange(self._arena.params)
        self._meet_at(self._store)
        self._adopt()
