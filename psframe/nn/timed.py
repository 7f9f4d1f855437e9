"""Layers that report the times of their passes (:class:`Timed`)."""

from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from psframe.nn.base import Layer, Pass
from psframe.nn.network import Network
from psframe.nn.steps import Meeting, Steps
from psframe.nn.wrapped import Wrapper, wrap

#: called at the end of a pass with ``forward`` or ``backward`` and the time of its beginning
Told = Callable[[str, float], None]
Clock = Callable[[], float]  #: returns seconds


class Timed(Wrapper):
    """Layer that reports each of its passes."""

    def __init__(self, layer: Any, told: Told, clock: Clock = perf_counter):
        super().__init__(layer)
        self.told, self.clock = told, clock

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        began = self.clock()
        y = self.layer.forward(x, state)
        self.told("forward", began)
        return y

    def backward(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> Any:
        began = self.clock()
        dx = self.layer.backward(x, dy, state, need_dx)
        self.told("backward", began)
        return dx

    def forward_steps(self, x: np.ndarray, state: Pass) -> Steps[np.ndarray]:
        return (yield from self._timed("forward", self.layer.forward_steps(x, state)))

    def backward_steps(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> Steps[Any]:
        return (yield from self._timed("backward", self.layer.backward_steps(x, dy, state, need_dx)))

    def _timed(self, direction: str, steps: Steps[Any]) -> Steps[Any]:
        """Report each stretch between two meetings as a pass, and the meetings as its own."""
        while True:
            began = self.clock()
            try:
                meeting = next(steps)
            except StopIteration as end:
                return end.value
            finally:
                self.told(direction, began)
            yield partial(self._meet, direction, meeting)

    def _meet(self, direction: str, meeting: Meeting) -> None:
        began = self.clock()
        meeting()
        self.told(direction, began)


def time_layers(network: Network, listener: Callable[[int, Layer], Told], clock: Clock = perf_counter) -> None:
    """Replace every own layer that runs by a :class:`Timed`, which reports to ``listener(index, layer)``."""
    wrap(network, lambda place, index, layer: Timed(layer, listener(index, layer), clock))
