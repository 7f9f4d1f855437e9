"""ReLU, dropout and flattening: layers without parameters."""

from math import prod

import numpy as np

from psframe import compiled
from psframe.errors import UserError
from psframe.nn.base import Base, Buffer, Pass, Shape, image
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
        mask(dy.reshape(-1), self.y.reshape(-1))
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
        self.buffers = {"y": Buffer(input_shape), "drawn": Buffer((prod(input_shape),), "float32")}
        return input_shape

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        self.drops = state.train and self.p_drop > 0
        if not self.drops:
            return x
        y, drawn = self.b["y"][: len(x)], self.b["drawn"][: len(x)]
        compiled.random.uniform(state.seed, self.stream, state.epoch, state.samples, drawn)
        drop(x.reshape(-1), drawn.reshape(-1), self.p_drop, y.reshape(-1))
        return y

    def backward(self, dy: np.ndarray, need_dx: bool) -> np.ndarray | None:
        if self.drops:
            drop(dy.reshape(-1), self.b["drawn"][: len(dy)].reshape(-1), self.p_drop, dy.reshape(-1))
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
def mask(dy, y):
    """Zero ``dy`` (m,) where ``y`` (m,) is not above 0."""
    for i in range(len(dy)):
        dy[i] = 0 if y[i] <= 0 else dy[i]


@jit
def drop(x, drawn, p, out):
    """Write to ``out`` (m,) 0 where ``drawn`` (m,) is below ``p``, and else ``x`` (m,) / (1 - p)."""
    scale = x.dtype.type(1 / (1 - p))
    zero = x.dtype.type(0)
    for i in range(len(x)):
        out[i] = zero if drawn[i] < p else x[i] * scale
