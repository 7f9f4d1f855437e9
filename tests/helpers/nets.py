"""Networks to be cut: across ranks, random ones and one of mostly dense layers; in parts of a batch, of many kinds."""

import numpy as np

from psframe.nn.activations import Dropout, Flatten, ReLU
from psframe.nn.conv import Conv2d
from psframe.nn.dense import Dense
from psframe.nn.normalization import BatchNorm, GroupNorm
from psframe.nn.pool import AvgPool2d, MaxPool2d
from psframe.nn.residual import Residual
from psframe.nn.smooth import GELU


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


def normalized(input_shape, n_classes):
    """Return a network with running statistics of what its first layer makes of the samples."""
    return [*(Conv2d(6, 3), BatchNorm(), ReLU(), Flatten()), Dense(n_classes)]


def mixed():
    """Return layers for images (3, 12, 12) and four classes."""
    return [
        *(Conv2d(6, 3, padding=1), ReLU(), Dropout(0.3), MaxPool2d(2), ReLU(), Conv2d(9, 2), AvgPool2d(2)),
        *(Dropout(0.2), Flatten(), Dense(20), ReLU(), Dropout(0.5), Dense(4)),
    ]


def by_tiles():
    """Return layers for such images, of which one is computed by tiles where fewer products are asked for."""
    return [*(Conv2d(33, 3, padding=1), ReLU(), Conv2d(35, 3), ReLU(), MaxPool2d(2)), Flatten(), Dense(4)]


def grouped():
    """Return layers of other kinds for such images: dilated, grouped and depthwise, a normalization, a shortcut."""
    return [
        *(Conv2d(6, 3, padding=2, dilation=2, groups=3), ReLU(), Conv2d(6, 3, groups=6), GELU(), GroupNorm(2)),
        *(Residual([Conv2d(6, 1)]), Flatten(), Dense(4)),
    ]
