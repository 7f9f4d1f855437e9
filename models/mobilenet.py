"""MobileNet for small images (:func:`mobilenet_small`)."""

from psframe.models.base import need_image
from psframe.nn.activations import ReLU
from psframe.nn.base import Layer, Shape
from psframe.nn.conv import Conv2d
from psframe.nn.dense import Dense
from psframe.nn.normalization import Norm, normalization
from psframe.nn.pool import GlobalAvgPool

BLOCKS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1))  # channels and stride


def mobilenet_small(input_shape: Shape, n_classes: int, *, norm: Norm = "batch") -> list[Layer]:
    """Return the first eight stages of Howard et al. 2017, "MobileNets: efficient convolutional neural networks for
    mobile vision applications", table 1, without the first one's stride: 543 050 parameters for (3, 32, 32) and 10
    classes.

    Parameters
    ----------
    norm : str
        Key of :data:`psframe.nn.normalization.TABLE`.
    """
    need_image("mobilenet_small", input_shape)
    layers = _unit(Conv2d(32, 3, padding=1, bias=False, init="he"), norm)
    inside = 32
    for channels, stride in BLOCKS:
        layers += _unit(Conv2d(inside, 3, stride=stride, padding=1, groups=inside, bias=False, init="he"), norm)
        layers += _unit(Conv2d(channels, 1, bias=False, init="he"), norm)
        inside = channels
    return [*layers, GlobalAvgPool(), Dense(n_classes)]


def _unit(convolution: Conv2d, norm: Norm) -> list[Layer]:
    return [convolution, normalization(norm, convolution.out_channels), ReLU()]
