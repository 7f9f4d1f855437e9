"""A network that trains in milliseconds, as a user's own model would be written."""

from psframe.nn.activations import Dropout, Flatten, ReLU
from psframe.nn.base import BaseLayer
from psframe.nn.conv import Conv2d
from psframe.nn.dense import Dense
from psframe.nn.normalization import Norm, normalization
from psframe.nn.pool import GlobalAvgPool, MaxPool2d
from psframe.nn.residual import Residual, Subsample


def build(input_shape, n_classes, *, dropout: float = 0.0, width: int = 4):
    return [
        Conv2d(width, 3, padding=1),
        MaxPool2d(2),
        ReLU(),
        Flatten(),
        *([Dropout(dropout)] if dropout else []),
        Dense(n_classes),
    ]


def deep(input_shape, n_classes, *, layers: int = 8, width: int = 4):
    return [*(Conv2d(width, 3, padding=1) for _ in range(layers)), Flatten(), Dense(n_classes)]


def residual(input_shape, n_classes, *, norm: Norm = "batch"):
    return [
        *(Conv2d(4, 3, padding=1, bias=False), normalization(norm, 4), ReLU()),
        Residual([Conv2d(4, 3, padding=1, groups=4, bias=False), normalization(norm, 4), ReLU(), Conv2d(4, 1)]),
        ReLU(),
        Residual([Conv2d(8, 3, stride=2, padding=1, bias=False), normalization(norm, 8)], [Subsample(8, 2)]),
        ReLU(),
        *(GlobalAvgPool(), Dense(n_classes)),
    ]


def meeting(input_shape, n_classes, *, norm: Norm = "batch_over_workers"):
    """Return layers that meet wherever layers can: before and in a shortcut, one within another, behind dense ones."""
    inner = [Conv2d(4, 3, padding=1), normalization(norm, 4)]
    return [
        *(Conv2d(4, 3, padding=1), normalization(norm, 4), ReLU()),
        Residual(
            [Subsample(4, 2), normalization("group", 4), ReLU(), Conv2d(4, 1), normalization(norm, 4)],
            [Subsample(4, 2), normalization(norm, 4)],
        ),
        ReLU(),
        Residual([Conv2d(4, 1), Residual(inner), ReLU(), Conv2d(4, 1)], [normalization(norm, 4)]),
        *(GlobalAvgPool(), Dense(4), normalization(norm, 4), ReLU(), Dropout(0.2), Dense(n_classes)),
    ]


class Doubled(BaseLayer):
    """y = 2 x, in numbers that NumPy has."""

    def setup(self, input_shape, index):
        return input_shape

    def forward(self, x, state):
        return x + x

    def backward(self, x, dy, state, need_dx):
        return dy + dy


def mixed(input_shape, n_classes):
    return [Flatten(), Doubled(), Dense(n_classes)]
