"""Layers in the place of those of a network (:func:`wrap`), such as :class:`Announced`."""

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np

from psframe.nn.base import Layer, Pass
from psframe.nn.network import Network


class Wrapper:
    """Layer that does all as another one, unless a subclass does it otherwise."""

    def __init__(self, layer: Any):
        self.layer = layer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.layer, name)


class Announced(Wrapper):
    """Layer that calls ``forward()`` and ``backward()`` when a training step begins such a pass, at its first part."""

    def __init__(self, layer: Any, forward: Callable[[], None], backward: Callable[[], None]):
        super().__init__(layer)
        self._forward, self._backward = forward, backward

    def forward(self, x: np.ndarray, state: Pass) -> Any:
        self._tell(self._forward, state)
        return self.layer.forward(x, state)

    def backward(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> Any:
        self._tell(self._backward, state)
        return self.layer.backward(x, dy, state, need_dx)

    def forward_steps(self, x: np.ndarray, state: Pass) -> Any:
        self._tell(self._forward, state)
        return self.layer.forward_steps(x, state)

    def backward_steps(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> Any:
        self._tell(self._backward, state)
        return self.layer.backward_steps(x, dy, state, need_dx)

    def _tell(self, listener: Callable[[], None], state: Pass) -> None:
        if state.train and not state.first:
            listener()


def wrap(network: Network, make: Callable[[int, int, Any], Layer]) -> None:
    """Replace every own layer that runs by ``make(place, index, layer)``, given its place among them and its number."""
    places, own = count(), network.active[network.own]
    for section in network.sections:
        section.layers = [make(place := next(places), own[place][0], layer) for layer in section.layers]
