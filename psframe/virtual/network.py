"""Links of nodes (:class:`Network`): messages in flight share them, by max-min fairness.

Each node has a link that carries ``bytes_per_s`` each way. A message's rate is what the fuller of its two ways leaves
it: none could have more without taking from one that has no more (Bertsekas and Gallager 1992, section 6.5; as a model
of TCP: Velho et al. 2013). It arrives a latency after its last byte has left. Messages of a stream, as TCP has one from
rank to rank, leave one behind the other.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from math import inf
from typing import Any


@dataclass(eq=False)
class _Way:
    """One way of a node's link, and the pairs of nodes whose messages cross it."""

    pairs: dict[tuple[int, int], "_Pair"] = field(default_factory=dict)
    n: int = 0  # messages
    left: float = 0.0  # bytes per second that have no message yet
    waiting: int = 0  # messages without a rate

    @property
    def share(self) -> float:
        return self.left / self.waiting

    def divide(self) -> None:
        """Give what is left to the messages without a rate."""
        rate = self.share
        for pair in self.pairs.values():
            if not pair.rate:
                pair.rate = rate
                for way in pair.ways:
                    way.left -= rate * len(pair.marks)
                    way.waiting -= len(pair.marks)


@dataclass(eq=False)
class _Pair:
    """Messages in flight from one node to another, which all have the same rate.

    ``served`` bytes of each have passed since the pair began; one ends when that has reached its mark.
    """

    ways: tuple[_Way, _Way]
    rate: float = 0.0
    served: float = 0.0
    marks: list[tuple[float, int, Any, Hashable]] = field(default_factory=list)  # a heap: (mark, number, what, stream)

    def ends_in(self) -> float:
        """Return the seconds until its next message ends."""
        return max(0.0, self.marks[0][0] - self.served) / self.rate

    def count(self, n: int) -> None:
        for way in self.ways:
            way.n += n


class Network:
    """Messages in flight between nodes. Times of calls may not go back.

    Parameters
    ----------
    bytes_per_s : float
        Of a node's link, each way.
    latency_s : float
    """

    def __init__(self, bytes_per_s: float, latency_s: float):
        self.bytes_per_s, self.latency_s = bytes_per_s, latency_s
        self._now_s, self._n_begun = 0.0, 0
        self._pairs: dict[tuple[int, int], _Pair] = {}
        self._streams: dict[Hashable, deque[tuple[Any, int]]] = {}  # that are busy: what is to be sent next
        self._out, self._in = defaultdict[int, _Way](_Way), defaultdict[int, _Way](_Way)
        self._left: list[tuple[float, int, Any]] = []  # a heap of those whose bytes have left: (arrives, number, what)
        self._leaving: tuple[float, tuple[int, int]] | None = None  # as _next returns, if that is known

    @property
    def is_busy(self) -> bool:
        """True while a message is in flight."""
        return bool(self._pairs or self._left)

    @property
    def next_s(self) -> float:
        """Time of the next arrival, if no further message begins; ``inf`` if none is in flight."""
        arrives_s = self._left[0][0] if self._left else inf
        return min(arrives_s, self._next()[0] + self.latency_s) if self._pairs else arrives_s

    def begin(self, what: Any, at_s: float, source: int, target: int, n_bytes: int, stream: Hashable = None) -> bool:
        """Begin a message between two nodes, at a time; :meth:`finish` will return ``what``.

        Return False if it begins behind the one before of its stream, which has only these nodes.
        """
        while self._pairs and self._next()[0] <= at_s:
            self._leave()
        self._pass(at_s)
        if stream in self._streams:
            self._streams[stream].append((what, n_bytes))
            return False
        if stream is not None:
            self._streams[stream] = deque()
        if (source, target) not in self._pairs:
            ways = self._out[source], self._in[target]
            self._pairs[source, target] = pair = _Pair(ways)
            for way in ways:
                way.pairs[source, target] = pair
        self._send(self._pairs[source, target], what, n_bytes, stream)
        return True

    def _send(self, pair: _Pair, what: Any, n_bytes: int, stream: Hashable) -> None:
        self._n_begun += 1
        pair.count(1)
        heapq.heappush(pair.marks, (pair.served + n_bytes, self._n_begun, what, stream))
        self._leaving = None

    def finish(self) -> tuple[Any, float]:
        """Return what arrives next, and when."""
        while self._pairs and not (self._left and self._left[0][0] <= self._next()[0] + self.latency_s):
            self._leave()
        arrives_s, _, what = heapq.heappop(self._left)
        return what, arrives_s

    def _next(self) -> tuple[float, tuple[int, int]]:
        """Return when the next message's last byte leaves, and from where to where."""
        if self._leaving is None:
            self._share()
            seconds, at = min((pair.ends_in(), at) for at, pair in self._pairs.items())
            self._leaving = self._now_s + seconds, at
        return self._leaving

    def _leave(self) -> None:
        """Let time pass until the next message's last byte leaves."""
        at_s, at = self._next()
        self._pass(at_s)
        pair = self._pairs[at]
        pair.served, number, what, stream = heapq.heappop(pair.marks)
        heapq.heappush(self._left, (at_s + self.latency_s, number, what))
        pair.count(-1)
        if following := self._streams.get(stream):
            self._send(pair, *following.popleft(), stream)
        else:
            self._streams.pop(stream, None)
        if not pair.marks:
            for way in pair.ways:
                del way.pairs[at]
            del self._pairs[at]
        self._leaving = None

    def _pass(self, to_s: float) -> None:
        for pair in self._pairs.values():
            pair.served += pair.rate * (to_s - self._now_s)
        self._now_s = to_s

    def _share(self) -> None:
        """Give each pair its rate: the fullest way first divides what it has left."""
        for pair in self._pairs.values():
            pair.rate = 0.0
        heap = list[tuple[float, int, _Way]]()
        for way in (*self._out.values(), *self._in.values()):
            if way.n:
                way.left, way.waiting = self.bytes_per_s, way.n
                heap.append((way.share, len(heap), way))
        heapq.heapify(heap)
        while heap:
            share, number, fullest = heap[0]
            if not fullest.waiting:
                heapq.heappop(heap)
            elif fullest.share > share:  # since others have had theirs
                heapq.heapreplace(heap, (fullest.share, number, fullest))
            else:
                fullest.divide()
