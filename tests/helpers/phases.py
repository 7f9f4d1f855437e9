"""Networks whose tensors have places of their own, and the phases of a step in which layers are at work."""

from functools import partial

import numpy as np

from psframe.memory.allocator import Allocator, Home
from psframe.memory.arena import Arena
from psframe.memory.by_tensor import ROLES
from psframe.nn.base import Pass
from psframe.nn.initial import initialize
from psframe.nn.network import Network
from psframe.nn.wrapped import Announced, wrap

N_CLASSES = 5


def by_tensor(layers, shape, n_samples, kernels="direct", **more):
    """Return a network with its first parameters, and the allocator of its memory."""
    network = Network(layers, shape, N_CLASSES)
    allocator = Allocator(homes={role: Home(by_tensor=True) for role in ROLES})
    network.bind(Arena(network.layout, 0, allocator), n_samples, allocator, kernels, **more)
    initialize(network, 1)
    return network, allocator


def announce(network, passing):
    """Call ``passing(phase)`` before each layer's pass from now on, forward and backward."""
    last = 2 * len(network.active) - 1
    wrap(
        network,
        lambda place, index, layer: Announced(layer, partial(passing, place), partial(passing, last - place)),
    )


def step_of(network, n_samples):
    """Return a function that passes the same random samples through a network, forward and backward."""
    x = np.random.default_rng(0).standard_normal((n_samples, *network.input_shape), np.float32)
    labels, state = np.arange(n_samples) % N_CLASSES, Pass(True, 1, 0, np.arange(n_samples))
    return partial(network.gradients, x, labels, state)
