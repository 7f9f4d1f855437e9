"""Initial values of a network's tensors (:func:`initialize`)."""

import numpy as np

from psframe import compiled
from psframe.nn.network import Network


def initialize(network: Network, seed: int) -> None:
    """Draw the parameters of a bound network: uniform within each tensor's bound, or as its layer gives them."""
    initial = [layer.initial(seed) for layer in network.layers]
    numbers = {name: number for number, name in enumerate(network.whole.slots)}
    for name, view in network.arena.views(network.arena.params).items():
        param, index = network.params[name], numbers[name]
        if param.bound:
            drawn = np.empty(param.whole.shape, np.float32)
            compiled.random.uniform(seed, compiled.random.INITIAL, 0, np.array([index]), drawn.reshape(1, -1))
            view[...] = (2 * param.rows(drawn) - 1) * param.bound
        layer, _, within = name.split(".", 2)
        if within in initial[int(layer)]:
            view[...] = initial[int(layer)][within]
