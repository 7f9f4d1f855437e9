"""Caffe's LeNet for small grey images (:func:`lenet`)."""

from psframe.models.base import need_image
from psframe.nn.activations import Flatten, ReLU
from psframe.nn.base import Layer, Shape
from psframe.nn.conv import Conv2d
from psframe.nn.dense import Dense
from psframe.nn.pool import MaxPool2d


def lenet(input_shape: Shape, n_classes: int) -> list[Layer]:
    """Return Caffe's ``examples/mnist/lenet_train_test.prototxt``: 431 080 parameters for (1, 28, 28) and 10 classes.

    After LeCun, Bottou, Bengio, Haffner 1998, "Gradient-based learning applied to document recognition", with max
    pooling, and ReLU instead of the sigmoid, only after the first dense layer.
    """
    need_image("lenet", input_shape)
    return [
        Conv2d(20, 5),
        MaxPool2d(2),
        Conv2d(50, 5),
        MaxPool2d(2),
        Flatten(),
        Dense(500),
        ReLU(),
        Dense(n_classes),
    ]
