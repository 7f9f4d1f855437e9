"""AlexNet (:func:`alexnet`), and its variant for small images (:func:`alexnet_small`)."""

from psframe.config.registry import Fraction
from psframe.models.base import need_image
from psframe.nn.activations import Dropout, Flatten, ReLU
from psframe.nn.base import Layer, Shape
from psframe.nn.conv import Conv2d
from psframe.nn.dense import Dense
from psframe.nn.pool import MaxPool2d


def alexnet(input_shape: Shape, n_classes: int, *, dropout: Fraction = 0.5) -> list[Layer]:
    """Return the network of Krizhevsky 2014, "One weird trick for parallelizing convolutional neural networks", as
    in torchvision: 57 016 131 parameters for (3, 224, 224) and 3 classes.

    Parameters
    ----------
    dropout : float
        Probability, in [0, 1), that an input of the first two dense layers is dropped.
    """
    need_image("alexnet", input_shape)
    return _layers(Conv2d(64, 11, stride=4, padding=2, init="he"), 4096, n_classes, dropout)


def alexnet_small(input_shape: Shape, n_classes: int, *, dropout: Fraction = 0.5) -> list[Layer]:
    """Return :func:`alexnet` for images from 24x24, such as CIFAR-10's: the first convolution is 3x3 with stride 1, and
    the dense layers have 512 units; 3 307 850 parameters for (3, 32, 32) and 10 classes.

    Parameters
    ----------
    dropout : float
        As in :func:`alexnet`.
    """
    need_image("alexnet_small", input_shape)
    return _layers(Conv2d(64, 3, padding=1, init="he"), 512, n_classes, dropout)


def _layers(first: Layer, width: int, n_classes: int, dropout: float) -> list[Layer]:
    """Return the network with the given first convolution and dense layers of ``width`` units."""
    return [
        *(first, ReLU(), MaxPool2d(3, 2)),
        *(Conv2d(192, 5, padding=2, init="he"), ReLU(), MaxPool2d(3, 2)),
        *(Conv2d(384, 3, padding=1, init="he"), ReLU()),
        *(Conv2d(256, 3, padding=1, init="he"), ReLU()),
        *(Conv2d(256, 3, padding=1, init="he"), ReLU(), MaxPool2d(3, 2)),
        *(Flatten(), Dropout(dropout), Dense(width, init="he"), ReLU()),
        *(Dropout(dropout), Dense(width, init="he"), ReLU()),
        Dense(n_classes),
    ]
