"""``hogwild`` (:class:`Hogwild`): a node's ranks update one parameter vector without locks (Recht et al. 2011)."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from psframe import compiled
from psframe.cluster.roles import Roles, Team
from psframe.errors import UserError
from psframe.memory.arena import Arena, Vectors
from psframe.optim import Updater
from psframe.record.traffic import Traffic
from psframe.sync.base import Mode, Parts
from psframe.sync.stores.shared import SharedStore
from psframe.sync.traits import Traits
from psframe.sync.work_source import SampleQueue


class Hogwild(Mode):
    """``w <- update(w, g_k(w))`` in place by every rank k at any time, while other ranks read and write ``w``.

    Of two simultaneous updates of an element one may be lost, and a read may mix several versions. Momentum and other
    state are private to each rank. Batches go to the next rank that is free. Staleness in the record: number of other
    ranks' updates between the start of a gradient's computation and its use.
    """

    source: SampleQueue

    def __init__(self):
        super().__init__(Traits("none", exchanges=False, survives=True))

    def check(self, roles: Roles) -> None:
        if roles.n_nodes > 1:
            raise UserError(
                f"sync.mode: hogwild must have all ranks on one node, got {roles.n_nodes} nodes; give sync.mode=dogwild"
            )

    def _allocate(self, parts: Parts) -> Arena:
        traffic = self._tally.moved_by(Traffic())
        self.common = SharedStore(self._team(parts), parts.layout.size, self._memory(parts), 1, traffic)
        vectors = Vectors(
            self.common.params,
            parts.allocator.zeros(parts.layout.size, np.float32, "gradients"),
            [parts.allocator.zeros((parts.n_state, parts.layout.size), np.float32, "optimizer")],
        )
        return Arena(parts.layout, parts.n_state, parts.allocator, vectors=vectors)

    def _source(self, parts: Parts) -> SampleQueue:
        return SampleQueue(self.common.tickets, parts.sampler)

    def _team(self, parts: Parts) -> Team:
        """Return the ranks that share one vector."""
        return parts.team

    def _memory(self, parts: Parts) -> Any:
        """Return the allocator of that vector."""
        return parts.allocator

    def open(self, update: Updater) -> None:
        self._update, self.whole = update, slice(0, self._parts.layout.size)
        self.mean = compiled.elementwise.Mean([self._arena.grads])
        for row in self._arena.state:  # of a continued run; state is private, unlike the parameters
            self._parts.team.comm.Bcast(row)
        self.common.open()
        self.made = 0

    def turns(self, n_steps: int) -> Iterator[tuple[int, int | None]]:
        for step, share, n_own in self.source.turns(n_steps):
            self.n_own = n_own
            self.seen = self.common.clock
            yield step, share

    def step(self, n_samples: int, lr: float, step: int) -> bool:
        self._update(self.whole, self.mean.over(self.n_own), lr, step)
        self._tally.exchanged((self.common.tick() - self.seen) % (1 << 32))
        return True

    def drain(self) -> None:
        self._meet_at(self.common)
