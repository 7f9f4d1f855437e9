"""Deaths of virtual ranks at times of their own (:class:`Deaths`), whatever they do then."""

from collections.abc import Mapping
from math import inf

from psframe.virtual.scheduler import Scheduler


class Deaths:
    """Agenda of deaths; see :class:`psframe.virtual.orders.Agenda`. A rank that has ended dies no more.

    Parameters
    ----------
    dies_s : mapping of int to float
        Virtual seconds after which a rank dies.
    """

    ranks: Scheduler

    def __init__(self, dies_s: Mapping[int, float]):
        self._coming = sorted((at_s, number) for number, at_s in dies_s.items())

    @property
    def next_s(self) -> float:
        while self._coming and self.ranks.ranks[self._coming[0][1]].has_ended:
            self._coming.pop(0)
        return self._coming[0][0] if self._coming else inf

    def finish(self) -> None:
        at_s, number = self._coming.pop(0)
        with self.ranks.event(at_s, -1):
            self.ranks.kill(number)
