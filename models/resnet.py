"""Residual networks for images: :func:`resnet8`, :func:`resnet20` and :func:`resnet18`."""

from psframe.models.base import need_image
from psframe.nn.activations import ReLU
from psframe.nn.base import Layer, Shape
from psframe.nn.conv import Conv2d
from psframe.nn.dense import Dense
from psframe.nn.normalization import Norm, normalization
from psframe.nn.pool import GlobalAvgPool, MaxPool2d
from psframe.nn.residual import Residual, Subsample


def resnet8(input_shape: Shape, n_classes: int, *, norm: Norm = "batch") -> list[Layer]:
    """Return :func:`resnet20` with one block in a stage instead of three: 75 290 parameters for (3, 32, 32) and 10
    classes.

    Parameters
    ----------
    norm : str
        Key of :data:`psframe.nn.normalization.TABLE`.
    """
    return _for_small_images("resnet8", input_shape, n_classes, 1, norm)


def resnet20(input_shape: Shape, n_classes: int, *, norm: Norm = "batch") -> list[Layer]:
    """Return the network for CIFAR-10 of He, Zhang, Ren and Sun 2016, "Deep residual learning for image recognition",
    section 4.2, with shortcuts of option A: 269 722 parameters for (3, 32, 32) and 10 classes (0.27 M in table 6).

    Parameters
    ----------
    norm : str
        As in :func:`resnet8`.
    """
    return _for_small_images("resnet20", input_shape, n_classes, 3, norm)


def resnet18(input_shape: Shape, n_classes: int, *, norm: Norm = "batch") -> list[Layer]:
    """Return the network for ImageNet of the same paper, table 1, with shortcuts of option B: 11 689 512 parameters for
    1000 classes and any size. As in the authors' Caffe model, the first pooling counts a last, clipped window.

    Parameters
    ----------
    norm : str
        As in :func:`resnet8`.
    """
    need_image("resnet18", input_shape)
    layers = [*_convolution(64, norm, 7, 2), ReLU(), MaxPool2d(3, 2, ceil_mode=True)]
    for channels, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        projection = _convolution(channels, norm, 1, stride) if stride > 1 else []
        layers += [*_block(channels, stride, norm, projection), *_block(channels, 1, norm, [])]
    return [*layers, GlobalAvgPool(), Dense(n_classes)]


def _for_small_images(name: str, input_shape: Shape, n_classes: int, n_blocks: int, norm: Norm) -> list[Layer]:
    need_image(name, input_shape)
    layers = [*_convolution(16, norm), ReLU()]
    for channels, stride in ((16, 1), (32, 2), (64, 2)):
        for step in (stride, *[1] * (n_blocks - 1)):
            layers += _block(channels, step, norm, [Subsample(channels, step)] if step > 1 else [])
    return [*layers, GlobalAvgPool(), Dense(n_classes)]


def _block(channels: int, stride: int, norm: Norm, shortcut: list[Layer]) -> list[Layer]:
    body = [*_convolution(channels, norm, stride=stride), ReLU(), *_convolution(channels, norm)]
    return [Residual(body, shortcut), ReLU()]


def _convolution(channels: int, norm: Norm, kernel: int = 3, stride: int = 1) -> list[Layer]:
    convolution = Conv2d(channels, kernel, stride=stride, padding=kernel // 2, bias=False, init="he")
    return [convolution, normalization(norm, channels)]
