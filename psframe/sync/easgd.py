"""``easgd``: elastic averaging (Zhang, Choromanska and LeCun 2015), :class:`EASGD` or :class:`SyncEASGD`."""

from collections.abc import Iterator

import numpy as np

from psframe import compiled
from psframe.config.registry import PositiveInt
from psframe.memory.arena import Arena
from psframe.optim import SGD, Updater
from psframe.sync.averaging import Averaging
from psframe.sync.base import Mode, Parts
from psframe.sync.elastic import Elastic, Force
from psframe.sync.stores.base import Store
from psframe.sync.traits import Traits
from psframe.sync.work_source import SampleQueue


class EASGD(Mode):
    """``x_k <- update(x_k, g_k)``; every ``period`` of its steps, worker k and the centre move towards each other.

    With Nesterov momentum in ``optimizer`` this is EAMSGD. Batches go to the next worker that is free. An epoch ends
    with an exchange by all workers, and with ``x_k`` at the centre, which is evaluated and saved. Staleness in the
    record: number of other workers' exchanges between two of one worker.
    """

    source: SampleQueue

    def __init__(self, period: int, beta: float, store: str):
        super().__init__(
            Traits(
                "none",
                exchanges=False,
                store=store,
                updates_shared=False,
                averages_statistics=True,
                survives=True,
            )
        )
        self.period, self.beta = period, beta

    def _allocate(self, parts: Parts) -> Arena:
        team, allocator = parts.team, parts.allocator
        self._store: Store = self._make_store(parts)
        self.exchange = Elastic(self._store, parts.layout.size, allocator, self.beta / team.n_workers, self._tally)
        return Arena(parts.layout, parts.n_state, allocator)

    def _source(self, parts: Parts) -> SampleQueue:
        return SampleQueue(self._store.tickets, parts.sampler)

    def open(self, update: Updater) -> None:
        self._update, self.whole = update, slice(0, self._parts.layout.size)
        self.mean = compiled.elementwise.Mean([self._arena.grads])
        self._fill(self._store)
        self._adopt()

    def _adopt(self) -> None:
        """Copy the centre's parameters, while no rank trains."""
        self.exchange.seen = self._store.pull(self._arena.params)
        self._store.rest()
        self.made = 0

    def turns(self, n_steps: int) -> Iterator[tuple[int, int | None]]:
        for step, share, n_own in self.source.turns(n_steps):
            self.n_own = n_own
            yield step, share

    def step(self, n_samples: int, lr: float, step: int) -> bool:
        self._update(self.whole, self.mean.over(self.n_own), lr, step)
        self.made += 1
        if self.made % self.period == 0:
            self.exchange(self._arena.params)
        return True

    def drain(self) -> None:
        self.exchange(self._arena.params)
        self._meet_at(self._store)
        self._adopt()


class SyncEASGD(Averaging):
    """Simultaneous exchange: ``c <- c + beta (mean_k x_k - c)``, ``x_k <- x_k - beta / W (x_k - c)``.

    The synchronous variant of You, Buluc and Demmel 2017, through the collective.
    """

    def __init__(self, period: int, beta: float):
        super().__init__(period)
        self.outer, self.outer_lr = SGD(lr=beta), beta

    def _allocate(self, parts: Parts) -> Arena:
        arena = super()._allocate(parts)
        self.force = parts.allocator.zeros(parts.layout.size, np.float32, "exchange")
        return arena

    def before_exchange(self, difference: np.ndarray) -> None:
        np.multiply(difference, np.float32(self.outer_lr / self.n_workers), out=self.force)
        self._arena.params += self.force

    def begin_local_steps(self) -> None:
        pass


def easgd(
    *,
    period: PositiveInt = 16,
    beta: Force = 0.9,
    synchronous: bool = False,
    store: str = "auto",
) -> Mode:
    """Return the mode: :class:`SyncEASGD` if ``synchronous``, else :class:`EASGD`.

    Parameters
    ----------
    period : int
        Steps of a worker between two exchanges with the centre (tau).
    beta : float
        Strength of the elastic force, which is beta / W for each of W workers; 0.9 in the paper.
    synchronous : bool
        True if all workers exchange at the same time, through the collective.
    store : str
        ``auto``, ``shared``, ``window`` or ``my_module:attr``; see ``psframe.sync.stores``.
    """
    return SyncEASGD(period, beta) if synchronous else EASGD(period, beta, store)
