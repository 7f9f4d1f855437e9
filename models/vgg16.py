"""VGG16 (:func:`vgg16`), and its variant for small images (:func:`vgg16_small`)."""

from psframe.config.registry import Fraction
from psframe.models.base import need_image
from psframe.nn.activations import Dropout, Flatten, ReLU
from psframe.nn.base import Layer, Shape
from psframe.nn.conv import Conv2d
from psframe.nn.dense import Dense
from psframe.nn.normalization import Norm, normalization
from psframe.nn.pool import MaxPool2d

BLOCKS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg16(input_shape: Shape, n_classes: int, *, dropout: Fraction = 0.5) -> list[Layer]:
    """Return configuration D of Simonyan and Zisserman 2015, "Very deep convolutional networks for large-scale image
    recognition": 134 272 835 parameters for (3, 224, 224) and 3 classes.

    Parameters
    ----------
    dropout : float
        Probability, in [0, 1), that an output of the first two dense layers is dropped.
    """
    need_image("vgg16", input_shape)
    return [*_convolutions(), *_classifier(4096, n_classes, dropout)]


def vgg16_small(input_shape: Shape, n_classes: int, *, dropout: Fraction = 0.5) -> list[Layer]:
    """Return :func:`vgg16` for images from 32x32, such as CIFAR-10's: dense layers have 512 units; 15 245 130
    parameters for (3, 32, 32) and 10 classes.

    Parameters
    ----------
    dropout : float
        As in :func:`vgg16`.
    """
    need_image("vgg16_small", input_shape)
    return [*_convolutions(), *_classifier(512, n_classes, dropout)]


def vgg16_bn_small(input_shape: Shape, n_classes: int, *, dropout: Fraction = 0.5, norm: Norm = "batch") -> list[Layer]:
    """Return :func:`vgg16_small` with a normalization in place of every convolution's bias: 15 249 354 parameters for
    (3, 32, 32) and 10 classes.

    Parameters
    ----------
    dropout : float
        As in :func:`vgg16`.
    norm : str
        Key of :data:`psframe.nn.normalization.TABLE`.
    """
    need_image("vgg16_bn_small", input_shape)
    return [*_convolutions(norm), *_classifier(512, n_classes, dropout)]


def _convolutions(norm: Norm | None = None) -> list[Layer]:
    layers: list[Layer] = []
    for block in BLOCKS:
        for width in block:
            layers.append(Conv2d(width, 3, padding=1, bias=norm is None, init="he"))
            layers += [normalization(norm, width), ReLU()] if norm else [ReLU()]
        layers.append(MaxPool2d(2))
    return layers


def _classifier(width: int, n_classes: int, dropout: float) -> list[Layer]:
    layers: list[Layer] = [Flatten()]
    for _ in range(2):
        layers += [Dense(width, init="he"), ReLU(), Dropout(dropout)]
    return [*layers, Dense(n_classes)]
