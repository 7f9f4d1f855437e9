"""Layers whose passes are traced."""

from time import perf_counter
from typing import Any

import numpy as np

from psframe.nn.base import Layer, Pass
from psframe.nn.network import Network
from psframe.record.trace import Trace


class Traced:
    """A layer with a span of ``trace`` around each of its passes; stands in for it in a network."""

    def __init__(self, layer: Layer, index: int, trace: Trace):
        self.layer, self.trace = layer, trace
        self.name = f"{index} {type(layer).__name__}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.layer, name)

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        began = perf_counter()
        y = self.layer.forward(x, state)
        if self.trace.on:
            self.trace.add(f"{self.name} forward", began)
        return y

    def backward(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> Any:
        began = perf_counter()
        dx = self.layer.backward(x, dy, state, need_dx)
        if self.trace.on:
            self.trace.add(f"{self.name} backward", began)
        return dx


def trace_layers(network: Network, trace: Trace) -> None:
    """Put a :class:`Traced` in the place of every layer that runs."""
    traced = [Traced(layer, index, trace) for index, layer in network.active]
    n_front = len(network.front)
    network.front[:], network.rest[:] = traced[:n_front], traced[n_front:]
