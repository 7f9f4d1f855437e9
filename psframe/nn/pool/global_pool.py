"""Pooling over all places of an image (:class:`GlobalAvgPool`)."""

import numpy as np

from psframe.nn.base import Pass, Shape
from psframe.nn.checks import image
from psframe.nn.pool.layers import AvgPool2d


class GlobalAvgPool(AvgPool2d):
    """The mean of each channel: input (n, H, W, C), output (n, C) (Lin, Chen and Yan 2014)."""

    def __init__(self) -> None:
        super().__init__(1)

    def setup(self, input_shape: Shape, index: int) -> Shape:
        height, width, channels = image(self, index, input_shape)
        self.kernel = self.stride = height, width
        super().setup(input_shape, index)
        return (channels,)

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        return super().forward(x, state).reshape(len(x), -1)

    def backward(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> np.ndarray | None:
        return super().backward(x, dy.reshape(len(x), 1, 1, -1), state, need_dx)
