"""``dogwild`` (:class:`Dogwild`): Hogwild in groups; they exchange differences with a master (Noel, Osindero 2014)."""

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from psframe.cluster.roles import Roles, Team
from psframe.config.registry import PositiveInt
from psframe.memory.arena import Arena
from psframe.optim import Updater
from psframe.sync.base import Parts
from psframe.sync.hogwild import Hogwild
from psframe.sync.stores.base import Store
from psframe.sync.work_source import SampleQueue


class Dogwild(Hogwild):
    """Every ``period`` steps of a group's first rank: ``d = w - r; m <- m + d; w <- w + (m - (r + d)); r <- m``.

    ``w`` are the group's parameters, which its ranks update concurrently without locks; ``m`` the master's, in a store;
    ``r`` the group's last copy of ``m``. At the end of an epoch all ``d`` are in ``m``, and every ``w`` equals ``m``.

    Parameters
    ----------
    group_size : int or 'auto'
        Ranks of a group, all on one node; ``auto``: those of a node, or half of them if there is only one.
    period : int
        Steps between two exchanges.
    store : str
        As in :func:`psframe.sync.easgd.easgd`.
    """

    def __init__(
        self,
        *,
        group_size: PositiveInt | Literal["auto"] = "auto",
        period: PositiveInt = 4,
        store: str = "auto",
    ):
        super().__init__()
        # the worker that died may be its group's first rank, which exchanges
        self.traits = replace(self.traits, store=store, survives=False, group_size=group_size)
        self.period = period

    def check(self, roles: Roles) -> None:
        pass

    def _team(self, parts: Parts) -> Team:
        return parts.group.team

    def _memory(self, parts: Parts) -> Any:
        return parts.group.apart(parts.allocator)

    def _allocate(self, parts: Parts) -> Arena:
        arena = super()._allocate(parts)
        size, allocator = parts.layout.size, parts.allocator
        self._store: Store = self._make_store(parts)
        vectors = allocator.zeros((3, size if parts.group.leads else 0), np.float32, "exchange")
        self.reference, self.difference, self.master = vectors[0], vectors[1], vectors[2]
        return arena

    def _source(self, parts: Parts) -> SampleQueue:
        return SampleQueue(self._store.tickets, parts.sampler)

    def open(self, update: Updater) -> None:
        self._fill(self._store)
        super().open(update)
        self._adopt()

    def step(self, n_samples: int, lr: float, step: int) -> bool:
        super().step(n_samples, lr, step)
        self.made += 1
        if self._parts.group.leads and self.made % self.period == 0:
            self._exchange()
        return True

    def _exchange(self) -> None:
        w, r, d, m = self._arena.params, self.reference, self.difference, self.master
        np.subtract(w, r, out=d)
        self._store.push(d)
        self._store.pull(m)
        r += d
        np.subtract(m, r, out=d)
        w += d  # in place: concurrent updates by other ranks stay
        r[:] = m

    def _adopt(self) -> None:
        """Copy the master's parameters, while no rank trains."""
        if self._parts.group.leads:
            self._store.pull(self._arena.params)
            self.reference[:] = self._arena.params
        self._store.rest()

    def drain(self) -> None:
        self._meet_at(self._store)  # until all ranks have written their last update
        if self._parts.group.leads:
            np.subtract(self._arena.params, self.reference, out=self.difference)
            self._store.push(self.difference)
        self._store.rest()
        self._adopt()
