"""Cores of nodes (:class:`Cores`), on which ranks that compute take turns."""

import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf
from random import Random

#: a rank has a core until the first tick of the kernel's clock at which it has had it for so long
LEAST_S, TICK_S = 1.4e-3, 4e-3


@dataclass(eq=False)
class _Task:
    """Computation of a rank, of which ``left_s`` seconds are left; ``then`` is called with its end."""

    left_s: float
    then: Callable[[float], None]


@dataclass(eq=False)
class _Core:
    """A core: the task that it serves until ``end_s``, if any, and those that wait for it."""

    serves: _Task | None = None
    end_s: float = 0.0
    number: int = 0  # of the slice
    waiting: deque[_Task] = field(default_factory=deque)

    @property
    def n(self) -> int:
        """Number of tasks that it has."""
        return len(self.waiting) + (self.serves is not None)

    def interrupt(self, at_s: float) -> None:
        """Let the task that it serves wait, as the first."""
        if self.serves:
            self.serves.left_s += self.end_s - at_s
            self.waiting.appendleft(self.serves)
            self.serves = None


class Cores:
    """Cores of nodes; an agenda of :class:`psframe.virtual.orders.ByTime`. Times of calls may not go back.

    As Linux does it, each core has a queue of its own, which it serves in turns. A rank that begins to compute takes
    the core that it had before, unless that is busy and another one is not; a core that has nothing to do takes what
    waits for another. So of three ranks on two cores one may be twice as fast as the others for a while.

    Parameters
    ----------
    n : int
        Cores of a node.
    seed : int
        Of the lengths of turns.
    """

    def __init__(self, n: int, seed: int = 0):
        self._random = Random(f"cores {seed}")
        self._n, self._nodes = n, dict[int, list[_Core]]()
        self._last: dict[tuple[int, int], _Core] = {}  # core of a rank
        self._slices: list[tuple[float, int, _Core, list[_Core]]] = []  # a heap, by end and number
        self._n_begun = 0

    @property
    def next_s(self) -> float:
        """Time at which the next turn ends; ``inf`` if no core is busy."""
        while self._slices:
            end_s, number, core, _ = self._slices[0]
            if core.number == number:
                return end_s
            heapq.heappop(self._slices)  # it was interrupted, and another one has begun
        return inf

    def begin(
        self, node: int, rank: int, at_s: float, seconds: float, then: Callable[[float], None], first: bool = False
    ) -> None:
        """Begin a rank's computation, of so many seconds of a core; with ``first``, before what the core serves."""
        if node not in self._nodes:
            self._nodes[node] = [_Core() for _ in range(self._n)]
        cores = self._nodes[node]
        core = self._last.get((node, rank))
        if core is None or core.serves:
            least = min(cores, key=lambda one: one.n)
            core = least if core is None or not least.serves else core
        self._last[node, rank] = core
        task = _Task(seconds, then)
        if first:
            core.interrupt(at_s)
            core.waiting.appendleft(task)
        else:
            core.waiting.append(task)
        self._serve(cores, core, at_s)

    def finish(self) -> None:
        """Let the next turn end."""
        at_s, _, core, cores = heapq.heappop(self._slices)
        task, core.serves = core.serves, None
        assert task
        is_done = task.left_s <= 0
        if not is_done:
            core.waiting.append(task)
        elif not core.waiting:
            core.waiting.extend(self._taken(cores))
        self._serve(cores, core, at_s)
        if is_done:
            task.then(at_s)

    @staticmethod
    def _taken(cores: list[_Core]) -> list[_Task]:
        """Return a task that waits for the core that has most."""
        most = max(cores, key=lambda one: len(one.waiting))
        return [most.waiting.popleft()] if most.waiting else []

    def _serve(self, cores: list[_Core], core: _Core, at_s: float) -> None:
        """Let a core that is free serve the task that has waited longest."""
        if core.serves or not core.waiting:
            return
        task = core.waiting.popleft()
        seconds = min(LEAST_S + TICK_S * self._random.random(), task.left_s)
        task.left_s -= seconds
        self._n_begun += 1
        core.serves, core.end_s, core.number = task, at_s + seconds, self._n_begun
        heapq.heappush(self._slices, (core.end_s, core.number, core, cores))
