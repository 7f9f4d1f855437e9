"""Gates of virtual ranks (:class:`VirtualRendezvous`): the compiled ones, at which a rank blocks in the scheduler."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from psframe import compiled
from psframe.cluster.gates import Lost, Rendezvous, Wait
from psframe.virtual.scheduler import Scheduler


class VirtualGates:
    """:class:`psframe.compiled.sync.Gates` without time-outs: what does not hold yet is False at once."""

    def __init__(self, ranks: Scheduler, memory: np.ndarray, n_ranks: int, me: int):
        self._ranks, self._at = ranks, memory.ctypes.data
        self._gates: Any = compiled.sync.Gates(memory, n_ranks, me)
        for name in ("tell", "is_told", "object", "is_objected", "missing"):
            setattr(self, name, getattr(self._gates, name))
        self.spins = 0

    def meet(self, gate: int, parties: int, arrives: bool, waits: bool, timeout_s: float) -> bool:
        self._ranks.point()
        self._gates.meet(gate, parties, arrives, False, 0)
        is_open = bool(self._gates.wait(gate, 0))
        if is_open:
            self._ranks.wake((self._at, gate))
        return is_open or not waits or self._ranks.misses((self._at, gate))

    def wait(self, gate: int, timeout_s: float) -> bool:
        return bool(self._gates.wait(gate, 0)) or self._ranks.misses((self._at, gate))


class VirtualCounters:
    """:class:`psframe.compiled.sync.Counters` in the same way, with a point before each access."""

    def __init__(self, ranks: Scheduler, memory: np.ndarray, n_counters: int):
        self._ranks, self._at = ranks, memory.ctypes.data
        self._counters: Any = compiled.sync.Counters(memory, n_counters)
        self.spins = 0

    def load(self, number: int) -> int:
        self._ranks.point()
        return int(self._counters.load(number))

    def add(self, number: int, n: int = 1) -> int:
        self._ranks.point()
        before = int(self._counters.add(number, n))
        self._ranks.wake((self._at, "counter", number))
        return before

    def wait(self, number: int, value: int, timeout_s: float) -> bool:
        return bool(self._counters.wait(number, value, 0)) or self._ranks.misses((self._at, "counter", number))

    def lock(self, number: int, timeout_s: float) -> bool:
        self._ranks.point()
        return bool(self._counters.lock(number, 0)) or self._ranks.misses((self._at, "lock", number))

    def unlock(self, number: int) -> None:
        self._ranks.point()
        self._counters.unlock(number)
        self._ranks.wake((self._at, "lock", number))


class VirtualRendezvous(Rendezvous):
    """Gates of a virtual node's ranks. No deadline passes: where all ranks wait, the scheduler raises Deadlock.

    Parameters
    ----------
    ranks : Scheduler
    memory, me, members
        As of :class:`psframe.cluster.gates.Rendezvous`.
    numbers : sequence of int
        Numbers of the node's ranks among those of the scheduler.
    """

    def __init__(self, ranks: Scheduler, memory: np.ndarray, me: int, members: Sequence[int], numbers: Sequence[int]):
        self._ranks, self._numbers = ranks, tuple(numbers)
        self.Gates, self.Counters = partial(VirtualGates, ranks), partial(VirtualCounters, ranks)
        super().__init__(memory, -1, me, members)
        self.n_cores = min(len(self.members), ranks.n_cores or len(self.members))

    def configure(self, wait: Wait, deadline_s: float, n_cores: int) -> None:
        """Set the deadline; the node's cores are those of its machine, not of the one that simulates it."""
        super().configure(wait, deadline_s, self.n_cores)

    def _live(self) -> None:
        """Do nothing: the scheduler knows which ranks live."""

    def until(self, wait: Callable[[float], bool], late: Callable[[], list[int]] = list, lost: Lost = list) -> None:
        self._watch(wait, late, lost)

    def dead(self) -> list[int]:
        return [rank for rank in self._ranks.dead(self._numbers) if rank != self.me]

    def _watch(self, wait: Callable[[float], bool], who_is_late: Callable[[], list[int]], lost: Lost = list) -> None:
        self._ranks.until(partial(self._has_come, wait, lost))

    def _has_come(self, wait: Callable[[float], bool], lost: Lost) -> bool:
        if wait(0):
            return True
        self._look(wait, lost)
        return False
