"""Cores of nodes (:class:`Cores`), on which ranks that compute take turns."""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from math import inf

SLICE_S = 4e-3  # of a core, before another rank has its turn: a tick of the kernel's clock


@dataclass(eq=False)
class _Task:
    """Computation of a rank, of which ``left_s`` seconds are left; ``then`` is called with its end."""

    left_s: float
    then: Callable[[float], None]


@dataclass(eq=False)
class _Node:
    n_free: int
    waiting: deque[_Task] = field(default_factory=deque)


class Cores:
    """Cores of nodes; an agenda of :class:`psframe.virtual.orders.ByTime`. Times of calls may not go back.

    A core serves a rank for a slice of time, and the next one then, if any waits.

    Parameters
    ----------
    n : int
        Cores of a node.
    """

    def __init__(self, n: int):
        self._nodes = defaultdict[int, _Node](lambda: _Node(n))
        self._slices: list[tuple[float, int, int, _Task]] = []  # a heap: end, number, node and task
        self._n_begun = 0

    @property
    def next_s(self) -> float:
        """Time at which the next slice ends; ``inf`` if no core is busy."""
        return self._slices[0][0] if self._slices else inf

    def begin(self, node: int, at_s: float, seconds: float, then: Callable[[float], None]) -> None:
        """Begin a computation, of so many seconds of a core."""
        self._nodes[node].waiting.append(_Task(seconds, then))
        self._serve(node, at_s)

    def finish(self) -> None:
        """Let the next slice end."""
        at_s, _, node, task = heapq.heappop(self._slices)
        self._nodes[node].n_free += 1
        if task.left_s > 0:
            self._nodes[node].waiting.append(task)
        self._serve(node, at_s)
        if task.left_s <= 0:
            task.then(at_s)

    def _serve(self, number: int, at_s: float) -> None:
        """Let a free core serve the rank that has waited longest."""
        node = self._nodes[number]
        if node.n_free and node.waiting:
            task = node.waiting.popleft()
            seconds = min(SLICE_S, task.left_s)
            task.left_s -= seconds
            node.n_free, self._n_begun = node.n_free - 1, self._n_begun + 1
            heapq.heappush(self._slices, (at_s + seconds, self._n_begun, number, task))
