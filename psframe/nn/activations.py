"""Layers without parameters: :class:`ReLU`, :class:`Dropout` and :class:`Flatten`."""

from math import prod

import numpy as np

from psframe import compiled
from psframe.nn.base import Arrays, BaseLayer, Layer, Pass, Shape
from psframe.nn.blocking import blocking
from psframe.nn.checks import image, number
from psframe.nn.jit import jit
from psframe.nn.lanes import pointer
from psframe.nn.pairs import times, zero_where_negative, zero_where_off
from psframe.nn.parts import share
from psframe.nn.reads import Reads
from psframe.nn.transpose import tile, transpose
from psframe.nn.workspace import Workspace


class ReLU(BaseLayer):
    """y = max(x, 0), of any shape; NaN stays NaN. A preceding :class:`BeforeReLU` absorbs it."""

    bfloat16 = "arrays"
    reads = Reads(1, 0, 1)

    def setup(self, input_shape: Shape, index: int) -> Shape:
        self.shape = input_shape
        return input_shape

    def bind(self, params: Arrays, grads: Arrays, workspace: Workspace) -> None:
        super().bind(params, grads, workspace)
        self.y = workspace.kept(self.shape)

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        y = self.y[state.first : state.first + len(x)]
        relu_forward(x.reshape(-1), y.reshape(-1))
        return y

    def backward(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> np.ndarray | None:
        relu_backward(dy.reshape(-1), self.y[state.first : state.first + len(x)].reshape(-1))
        return dy


class BeforeReLU(BaseLayer):
    """Base class of layers that apply a following ReLU to their output while it is in registers.

    Attributes
    ----------
    relu : bool
        True if a ReLU follows and is absorbed.
    """

    relu = False
    bfloat16 = "arrays"

    @property
    def reads(self) -> Reads:  # type: ignore[override]
        return Reads(1, 1, int(self.relu))

    def absorb(self, following: Layer) -> bool:
        absorbs = isinstance(following, ReLU) and not self.relu
        self.relu = self.relu or absorbs
        return absorbs


class Dropout(BaseLayer):
    """Zero each number with probability ``p`` in training and scale the others by 1 / (1 - p) (inverted dropout;
    Srivastava et al. 2014). The dropped numbers depend only on the seed, the epoch, the sample and the layer.

    Parameters
    ----------
    p : float
        In [0, 1).
    """

    bfloat16 = "arrays"
    reads = Reads(1, 0, 0)

    @property
    def is_view(self) -> bool:
        return not self.p_drop

    def __init__(self, p: float):
        self.p_drop = number("p of Dropout", p, "lie in [0, 1)", lambda value: 0 <= value < 1)

    def setup(self, input_shape: Shape, index: int) -> Shape:
        self.stream = compiled.random.LAYER + index
        self.shape = input_shape
        return input_shape

    def bind(self, params: Arrays, grads: Arrays, workspace: Workspace) -> None:
        super().bind(params, grads, workspace)
        if self.p_drop:
            self.y, self.mask = workspace.kept(self.shape), workspace.kept((prod(self.shape),), "float32")

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        if not self._drops(state):
            return x
        rows = slice(state.first, state.first + len(x))
        mask = self.mask[rows]
        compiled.random.uniform(state.seed, self.stream, state.epoch, state.samples, mask)
        y = self.y[rows]
        drop(x.reshape(-1), mask.reshape(-1), np.float32(self.p_drop), y.reshape(-1))
        return y

    def backward(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> np.ndarray | None:
        if self._drops(state):
            mask = self.mask[state.first : state.first + len(x)]
            scale(dy.reshape(-1), mask.reshape(-1))
        return dy

    def _drops(self, state: Pass) -> bool:
        return state.train and self.p_drop > 0


class Flatten(BaseLayer):
    """(n, H, W, C) to (n, C * H * W), channels outermost, so that a following Dense has PyTorch's weight order."""

    bfloat16 = "arrays"
    reads = Reads(1, 0, 0)

    def setup(self, input_shape: Shape, index: int) -> Shape:
        h, w, c = image(self, index, input_shape)
        self.input_shape, self.places = input_shape, h * w
        self.is_view = c == 1 or h * w == 1
        return (c * h * w,)

    def bind(self, params: Arrays, grads: Arrays, workspace: Workspace) -> None:
        super().bind(params, grads, workspace)
        if not self.is_view:
            self.y, self.dx = workspace.kept((prod(self.input_shape),)), workspace.input_gradient(self.input_shape)
            lanes, channels = blocking(1, 1, np.dtype(workspace.sums).itemsize).lanes, self.input_shape[2]
            self.tile = tile(lanes, self.places, channels)
            self.back_tile = tile(lanes, channels, self.places)

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        if self.is_view:
            return x.reshape(len(x), prod(self.input_shape))
        y, channels = self.y[state.first : state.first + len(x)], self.input_shape[2]
        given, made = (len(x), self.places, channels), (len(x), channels, self.places)
        self.threads.run(turn, self.tile, x.reshape(given), y.reshape(made))
        return y

    def backward(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> np.ndarray | None:
        if self.is_view:
            return dy.reshape(len(dy), *self.input_shape)
        dx, channels = self.dx[: len(dy)], self.input_shape[2]
        given, made = (len(dy), channels, self.places), (len(dy), self.places, channels)
        self.threads.run(turn, self.back_tile, dy.reshape(given), dx.reshape(made))
        return dx


@jit
def relu_forward(x, y):
    """Write max(``x``, 0) to ``y``, both (m,); NaN stays NaN."""
    zero_where_negative(x, y)


@jit
def relu_backward(dy, y):
    """Zero ``dy`` (m,) where ``y`` (m,) is at most 0."""
    zero_where_off(dy, y)


@jit
def turn(part, n_parts, tile, x, y):
    """Write the transpose of each sample of ``x`` (n, a, b) to ``y`` (n, b, a)."""
    n, a, b = x.shape
    for s in share(n, part, n_parts):
        at = s * a * b
        transpose(tile, (a, b), (pointer(x), at, b), (pointer(y), at, a))


@jit
def drop(x, mask, p, y):
    """Write ``x`` (m,) times ``mask`` to ``y``. The mask's numbers in [0, 1) become 0 below ``p``, else 1 / (1 - p)."""
    factor = np.float32(1) / (np.float32(1) - p)
    for i in range(len(x)):
        mask[i] = np.float32(0) if mask[i] < p else factor
        y[i] = times(x[i], mask[i])


@jit
def scale(x, mask):
    """Multiply ``x`` (m,) by ``mask``, in place."""
    for i in range(len(x)):
        x[i] = times(x[i], mask[i])
