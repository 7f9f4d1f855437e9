"""One-dimensional residual network for time series (:func:`har_resnet`)."""

from psframe.models.base import need_sequence
from psframe.nn.activations import ReLU
from psframe.nn.base import Layer, Shape
from psframe.nn.conv import Conv1d
from psframe.nn.dense import Dense
from psframe.nn.normalization import Norm, normalization
from psframe.nn.pool import GlobalAvgPool
from psframe.nn.residual import Residual


def har_resnet(input_shape: Shape, n_classes: int, *, norm: Norm = "batch") -> list[Layer]:
    """Return the ResNet of Wang, Yan and Oates 2017, "Time series classification from scratch with deep neural
    networks: a strong baseline": 483 078 parameters for (9, 128) and 6 classes. Its first kernel has 7 numbers instead
    of 8, so that padding is the same at both ends.

    Parameters
    ----------
    norm : str
        Key of :data:`psframe.nn.normalization.TABLE`.
    """
    need_sequence("har_resnet", input_shape)
    layers: list[Layer] = []
    for channels, projects in ((64, True), (128, True), (128, False)):
        first, second = (_convolution(channels, kernel, norm) for kernel in (7, 5))
        body = [*first, ReLU(), *second, ReLU(), *_convolution(channels, 3, norm)]
        shortcut = _convolution(channels, 1, norm) if projects else [normalization(norm, channels)]
        layers += [Residual(body, shortcut), ReLU()]
    return [*layers, GlobalAvgPool(), Dense(n_classes)]


def _convolution(channels: int, kernel: int, norm: Norm) -> list[Layer]:
    convolution = Conv1d(channels, kernel, padding=kernel // 2, bias=False, init="he")
    return [convolution, normalization(norm, channels)]
