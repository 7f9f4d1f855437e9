"""ReLU, dropout and flattening: layers without parameters."""

from math import prod

import numpy as np

from psframe import compiled
from psframe.errors import UserError
from psframe.nn.base import Base, Buffer, Pass, Shape
from psframe.nn.checks import image
from psframe.nn.jit import jit


class ReLU(Base):
    """y = max(x, 0), of any shape; NaN stays NaN."""

    def setup(self, input_shape: Shape, index: int) -> Shape:
        self.buffers = {"y": Buffer(input_shape)}
        return input_shape

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        self.y = np.maximum(x, 0, out=self.b["y"][: len(x)])
        return self.y

    def backward(self, dy: np.ndarray, need_dx: bool) -> np.ndarray | None:
        zero_where_off(dy.reshape(-1), self.y.reshape(-1))
        return dy


class Dropout(Base):
    """Zero each number with probability ``p`` in training and scale the others by 1 / (1 - p) (inverted dropout;
    Srivastava et al. 2014). What is dropped depends on the seed, the epoch, the sample and the layer alone.

    Parameters
    ----------
    p : float
        In [0, 1).
    """

    def __init__(self, p: float):
        if not 0 <= p < 1:
            raise UserError(f"p of Dropout must lie in [0, 1), got {p!r}; mend the model")
        self.p_drop = p

    def setup(self, input_shape: Shape, index: int) -> Shape:
        self.stream = compiled.random.LAYER + index
        self.buffers = {"y": Buffer(input_shape), "mask": Buffer((prod(input_shape),), "float32")}
        return input_shape

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        self.drops = state.train and self.p_drop > 0
        if not self.drops:
            return x
        mask = self.b["mask"][: len(x)]
        compiled.random.uniform(state.seed, self.stream, state.epoch, state.samples, mask)
        keep(mask.reshape(-1), np.float32(self.p_drop))
        return np.multiply(x, mask.reshape(x.shape), out=self.b["y"][: len(x)])

    def backward(self, dy: np.ndarray, need_dx: bool) -> np.ndarray | None:
        if self.drops:
            dy *= self.b["mask"][: len(dy)].reshape(dy.shape)
        return dy


class Flatten(Base):
    """(n, H, W, C) to (n, C * H * W), channels outermost, so that a following Dense has PyTorch's weights."""

    def setup(self, input_shape: Shape, index: int) -> Shape:
        h, w, c = image(self, index, input_shape)
        self.input_shape, self.channels_first = input_shape, (c, h, w)
        self.is_view = c == 1 or h * w == 1
        if not self.is_view:
            self.buffers = {"y": Buffer((c * h * w,)), "dx": Buffer(input_shape)}
        return (c * h * w,)

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        if self.is_view:
            return x.reshape(len(x), prod(self.input_shape))
        y = self.b["y"][: len(x)]
        y.reshape(len(x), *self.channels_first)[:] = x.transpose(0, 3, 1, 2)
        return y

    def backward(self, dy: np.ndarray, need_dx: bool) -> np.ndarray | None:
        if self.is_view:
            return dy.reshape(len(dy), *self.input_shape)
        dx = self.b["dx"][: len(dy)]
        dx[:] = dy.reshape(len(dy), *self.channels_first).transpose(0, 2, 3, 1)
        return dx


@jit
def zero_where_off(dy, y):
    """Zero ``dy`` (m,) where ``y`` (m,) is not above 0."""
    for i in range(len(dy)):
        dy[i] = 0 if y[i] <= 0 else dy[i]


@jit
def keep(mask, p):
    """Replace the numbers in [0, 1) of ``mask`` (m,) float32 by 0 where they are below ``p``, else by 1 / (1 - p)."""
    scale = np.float32(1) / (np.float32(1) - p)
    for i in range(len(mask)):
        mask[i] = np.float32(0) if mask[i] < p else scale
