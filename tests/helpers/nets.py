"""Networks to be cut across ranks: random ones, and one of mostly dense layers."""

import numpy as np

from psframe.nn.activations import Dropout, Flatten, ReLU
from psframe.nn.conv import Conv2d
from psframe.nn.dense import Dense
from psframe.nn.pool import AvgPool2d, MaxPool2d


def random(input_shape, n_classes, *, seed: int = 0):
    """Return a random network of 5 to 13 layers; of few widths, since kernels are compiled for each."""
    draw = np.random.default_rng(seed)
    layers = []
    for _ in range(draw.integers(1, 4)):
        layers.append(Conv2d(int(draw.choice([3, 8])), int(draw.integers(1, 4)), padding=1))
        layers += [[], [ReLU()], [MaxPool2d(2)], [AvgPool2d(2), ReLU()]][draw.integers(4)]
    layers.append(Flatten())
    for _ in range(draw.integers(1, 3)):
        layers += [Dense(int(draw.choice([5, 16]))), *[ReLU()][: draw.integers(2)]]
        layers += [Dropout(0.3)][: draw.integers(2)]
    return [*layers, Dense(n_classes)]


def heavy(input_shape, n_classes):
    """Return a network whose dense layers have nearly all parameters."""
    layers = [Conv2d(8, 3, stride=2), ReLU(), MaxPool2d(2), Flatten()]
    return [*layers, Dense(1024), ReLU(), Dense(1024), ReLU(), Dense(n_classes)]
