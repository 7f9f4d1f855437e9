"""Layers that report the times of their passes (:class:`Timed`)."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from psframe.nn.base import Layer, Pass
from psframe.nn.network import Network

#: called at the end of a pass with ``forward`` or ``backward`` and the time of its beginning
Told = Callable[[str, float], None]
Clock = Callable[[], float]  #: returns seconds


class Timed:
    """Wrapper that replaces a layer in a network and reports each of its passes."""

    def __init__(self, layer: Layer, told: Told, clock: Clock = perf_counter):
        self.layer, self.told, self.clock = layer, told, clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self.layer, name)

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


def time_layers(network: Network, listener: Callable[[int, Layer], Told], clock: Clock = perf_counter) -> None:
    """Replace every own layer that runs by a :class:`Timed`, which reports to ``listener(index, layer)``."""
    timed: list[Any] = [Timed(layer, listener(index, layer), clock) for index, layer in network.active[network.own]]
    n_front = len(network.front)
    network.front[:], network.rest[:] = timed[:n_front], timed[n_front:]
