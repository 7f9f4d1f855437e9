"""Caffe's quick network for CIFAR-10 (:func:`cifar_quick`)."""

from psframe.models.base import need_image
from psframe.nn.activations import Flatten, ReLU
from psframe.nn.base import Layer, Shape
from psframe.nn.conv import Conv2d
from psframe.nn.dense import Dense
from psframe.nn.pool import AvgPool2d, MaxPool2d


def cifar_quick(input_shape: Shape, n_classes: int) -> list[Layer]:
    """Return Caffe's ``examples/cifar10/cifar10_quick_train_test.prototxt``: 145 578 parameters for (3, 32, 32) and
    10 classes.

    After cuda-convnet (Krizhevsky 2012). Initial values differ: He's before a ReLU, instead of Gaussians whose widths
    were tuned for CIFAR-10.
    """
    need_image("cifar_quick", input_shape)
    return [
        Conv2d(32, 5, padding=2, init="he"),
        MaxPool2d(3, 2, ceil_mode=True),
        ReLU(),
        Conv2d(32, 5, padding=2, init="he"),
        ReLU(),
        AvgPool2d(3, 2, ceil_mode=True),
        Conv2d(64, 5, padding=2, init="he"),
        ReLU(),
        AvgPool2d(3, 2, ceil_mode=True),
        Flatten(),
        Dense(64),
        Dense(n_classes),
    ]
