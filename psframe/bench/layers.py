"""The time that each layer of a network takes within a step, and the work that it is."""

from math import prod
from time import perf_counter
from typing import Any

import numpy as np

from psframe.nn.base import Layer, Pass
from psframe.nn.network import Network

DIRECTIONS = ("forward", "backward")


class Timed:
    """A layer that adds up what its passes take; stands in for it in a network."""

    def __init__(self, layer: Layer):
        self.layer = layer
        self.seconds = dict.fromkeys(DIRECTIONS, 0.0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.layer, name)

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        began = perf_counter()
        y = self.layer.forward(x, state)
        self.seconds["forward"] += perf_counter() - began
        return y

    def backward(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> Any:
        began = perf_counter()
        dx = self.layer.backward(x, dy, state, need_dx)
        self.seconds["backward"] += perf_counter() - began
        return dx

    def take(self) -> dict[str, float]:
        """Return the seconds since the last call, by direction."""
        taken, self.seconds = self.seconds, dict.fromkeys(DIRECTIONS, 0.0)
        return taken


def time_layers(network: Network) -> list[Timed]:
    """Put a :class:`Timed` in the place of every layer that runs; return them in their order."""
    front, rest = ([Timed(layer) for layer in layers] for layers in (network.front, network.rest))
    network.front[:], network.rest[:] = front, rest
    return [*front, *rest]


def work(network: Network, number: int, batch: int) -> dict[str, dict[str, float]]:
    """Return, by direction, an active layer's multiplications and additions, and the bytes that it must at least move.

    Forward it reads input and weights and writes its output; backward it reads those and the output's gradient, and
    writes the gradients of weights and input. The first layer's input needs none.
    """
    index, layer = network.active[number]
    following = network.active[number + 1][0] if number + 1 < len(network.active) else len(network.layers)
    inputs, outputs = (batch * prod(network.shapes[i]) for i in (index, following))
    numbers = sum(prod(param.shape) for param in layer.params.values())
    flops = batch * network.flops_forward(index)
    first = index == 0
    return {
        "forward": {"flops": flops, "bytes": 4.0 * (inputs + outputs + numbers)},
        "backward": {
            "flops": flops * (1 if first else 2),
            "bytes": 4.0 * (inputs + outputs + 2 * numbers + (0 if first else inputs)),
        },
    }
