"""Orders of virtual ranks: by time (:class:`ByTime`), at random (:class:`AtRandom`), or all (:func:`schedules`)."""

import heapq
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Protocol

from psframe.virtual.scheduler import Rank

FAIR = 64  # points of one rank in a row, before another one goes first: one that polls would never end


class Agenda(Protocol):
    """Events at times of their own."""

    @property
    def next_s(self) -> float:
        """Time of the next one, ``inf`` if there is none."""

    def finish(self) -> None:
        """Let the next one happen; ranks that can go on then are added to the order."""


class Agendas:
    """Events of several agendas, in the order of their times."""

    def __init__(self, *agendas: Agenda):
        self._agendas = agendas

    @property
    def next_s(self) -> float:
        return min(agenda.next_s for agenda in self._agendas)

    def finish(self) -> None:
        min(self._agendas, key=lambda agenda: agenda.next_s).finish()


class ByTime:
    """The rank whose virtual time is least; of several, one that a seed draws.

    Events of ``agenda`` happen before ranks whose time is later.
    """

    def __init__(self, seed: int = 0, agenda: Agenda | None = None):
        self._random, self._heap, self._n = Random(seed), list[tuple[float, float, int, Rank]](), 0
        self._agenda = agenda

    def add(self, rank: Rank) -> None:
        self._n += 1
        heapq.heappush(self._heap, (rank.at_s, self._random.random(), self._n, rank))

    def pop(self) -> Rank | None:
        while self._agenda and self._agenda.next_s <= (self._heap[0][0] if self._heap else sys.float_info.max):
            self._agenda.finish()
        return heapq.heappop(self._heap)[-1] if self._heap else None


class _Listed:
    """Base of orders that know all ranks that can go on, in the order of their numbers."""

    def __init__(self) -> None:
        self._able: list[Rank] = []
        self._last: Rank | None = None
        self._in_a_row = 0

    def add(self, rank: Rank) -> None:
        self._able.append(rank)

    def pop(self) -> Rank | None:
        if not self._able:
            return None
        able = sorted(self._able, key=lambda rank: rank.number)
        chosen = self.choose(able)
        self._in_a_row = self._in_a_row + 1 if chosen is self._last else 0
        if self._in_a_row >= FAIR and len(able) > 1:
            chosen, self._in_a_row = able[(able.index(chosen) + 1) % len(able)], 0
        self._last = chosen
        self._able.remove(chosen)
        return chosen

    def choose(self, able: Sequence[Rank]) -> Rank:
        """Return one of the ranks that can go on."""
        raise NotImplementedError


class AtRandom(_Listed):
    """An order that a seed draws: ranks have priorities, which change at a few points (Burckhardt et al. 2010, PCT).

    A bug that needs d ordered points is found with a probability that does not fall with the length of the run, while
    orders that draw each point alone hardly ever let one rank run far ahead. Half of the seeds draw each point.
    """

    def __init__(self, seed: int, n_changes: int = 12, n_points: int = 4000):
        super().__init__()
        self._random = Random(seed)
        self._plainly = seed % 2 == 0
        self._changes = {self._random.randrange(n_points) for _ in range(n_changes)}
        self._priorities: dict[int, float] = {}
        self._n = 0

    def choose(self, able: Sequence[Rank]) -> Rank:
        if self._plainly:
            return self._random.choice(able)
        for rank in able:
            self._priorities.setdefault(rank.number, self._random.random())
        first = max(able, key=lambda rank: self._priorities[rank.number])
        if self._n in self._changes:
            self._priorities[first.number] = -self._random.random()
            first = max(able, key=lambda rank: self._priorities[rank.number])
        self._n += 1
        return first


class _Replayed(_Listed):
    """An order with given preemptions: each a point's number, and the rank that goes on there in place of the last.

    The rank that was preempted goes on when no other one can. Points count while a rank is in :meth:`counting`.
    """

    def __init__(self, preemptions: dict[int, int]):
        super().__init__()
        self._preemptions = preemptions
        self._n = 0
        self._held: int | None = None  # the rank that was preempted last
        self._n_inside = 0
        self.alternatives: list[list[int]] = []  # by point, the ranks that could have gone on in place of the last

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Let the points count in which any rank is in such a context."""
        self._n_inside += 1
        yield
        self._n_inside -= 1

    def choose(self, able: Sequence[Rank]) -> Rank:
        by_number = {rank.number: rank for rank in able}
        others = [rank for rank in able if rank.number != self._held] or list(able)
        usual = self._last if self._last in others else others[0]
        if not self._n_inside:
            return usual
        self.alternatives.append([number for number in by_number if number != usual.number])
        wanted = by_number.get(self._preemptions.get(self._n, usual.number), usual)
        if wanted is not usual:
            self._held = usual.number
        self._n += 1
        return wanted


def schedules(most: int) -> Iterator[_Replayed]:
    """Yield an order for every schedule with at most so many preemptions (Musuvathi and Qadeer 2007), fewest first.

    The caller runs each order before it asks for the next: how it went tells which preemptions are possible.
    """
    plans: list[dict[int, int]] = [{}]
    for n in range(most + 1):
        longer: list[dict[int, int]] = []
        for plan in plans:
            order = _Replayed(plan)
            yield order
            if n < most:
                first = max(plan, default=-1) + 1
                longer += [
                    plan | {at: number}
                    for at in range(first, len(order.alternatives))
                    for number in order.alternatives[at]
                ]
        plans = longer
