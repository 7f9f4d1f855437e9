"""Layers that tell when their passes began and ended."""

from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np

from psframe.nn.base import Layer, Pass
from psframe.nn.network import Network

#: is told ``forward`` or ``backward``, and when that began, as soon as it has ended
Told = Callable[[str, float], None]
Clock = Callable[[], float]  #: of seconds


class Timed:
    """A layer that tells of each of its passes; stands in for it in a network."""

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
    """Put a :class:`Timed` in the place of every layer that runs, which tells ``listener(index, layer)``."""
    timed: list[Any] = [Timed(layer, listener(index, layer), clock) for index, layer in network.active[network.own]]
    n_front = len(network.front)
    network.front[:], network.rest[:] = timed[:n_front], timed[n_front:]
