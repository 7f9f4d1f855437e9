"""Activations other than ReLU: :class:`LeakyReLU`, :class:`SiLU` and :class:`GELU`."""

from math import erf, exp, pi, sqrt
from typing import Any, ClassVar

import numpy as np

from psframe.nn.base import Arrays, BaseLayer, Pass, Shape
from psframe.nn.checks import number
from psframe.nn.jit import inline, jit
from psframe.nn.pairs import as_number, number_as
from psframe.nn.parts import share
from psframe.nn.reads import Reads
from psframe.nn.workspace import Workspace


class _Activation(BaseLayer):
    """y = f(x), number by number, of any shape."""

    reads = Reads(1, 1, 0)
    kernels_of: ClassVar[tuple[Any, Any]]
    bfloat16, slope = "arrays", 0.0

    def setup(self, input_shape: Shape, index: int) -> Shape:
        self.shape = input_shape
        return input_shape

    def bind(self, params: Arrays, grads: Arrays, workspace: Workspace) -> None:
        super().bind(params, grads, workspace)
        self.y, self.factor = workspace.output(self.shape), np.dtype(workspace.sums).type(self.slope)

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        y = self.y[state.first : state.first + len(x)]
        self.threads.run(self.kernels_of[0], x.reshape(-1), self.factor, y.reshape(-1))
        return y

    def backward(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> np.ndarray | None:
        self.threads.run(self.kernels_of[1], x.reshape(-1), self.factor, dy.reshape(-1))
        return dy


@jit
def leaky_forward(part, n_parts, x, slope, y):
    """Write ``x``, negative numbers times ``slope``, to ``y``; both (m,)."""
    for i in share(len(x), part, n_parts):
        z = as_number(x[i])
        y[i] = number_as(z * slope if z < 0 else z, y)


@jit
def leaky_backward(part, n_parts, x, slope, dy):
    """Multiply ``dy`` by the slope at ``x``; both (m,)."""
    for i in share(len(x), part, n_parts):
        g = as_number(dy[i])
        dy[i] = number_as(g if as_number(x[i]) > 0 else g * slope, dy)


@jit
def silu_forward(part, n_parts, x, slope, y):
    """Write ``x`` / (1 + exp(-``x``)) to ``y``; both (m,)."""
    for i in share(len(x), part, n_parts):
        z = as_number(x[i])
        y[i] = number_as(z * sigmoid(z), y)


@jit
def silu_backward(part, n_parts, x, slope, dy):
    """Multiply ``dy`` by the derivative at ``x``; both (m,)."""
    for i in share(len(x), part, n_parts):
        z = as_number(x[i])
        s = sigmoid(z)
        dy[i] = number_as(as_number(dy[i]) * (s + z * s * (1 - s)), dy)


@jit
def gelu_forward(part, n_parts, x, slope, y):
    """Write ``x`` times the normal distribution function at ``x`` to ``y``; both (m,)."""
    for i in share(len(x), part, n_parts):
        z = as_number(x[i])
        y[i] = number_as(z * normal(z), y)


@jit
def gelu_backward(part, n_parts, x, slope, dy):
    """Multiply ``dy`` by the derivative at ``x``; both (m,)."""
    for i in share(len(x), part, n_parts):
        z = as_number(x[i])
        density = exp(-0.5 * z * z) / sqrt(2 * pi)
        dy[i] = number_as(as_number(dy[i]) * (normal(z) + z * density), dy)


@inline
def sigmoid(x):
    """Return 1 / (1 + exp(-x)), in float64, without overflow."""
    small = exp(-abs(np.float64(x)))
    return 1 / (1 + small) if x >= 0 else small / (1 + small)


@inline
def normal(x):
    """Return the share of a standard normal distribution below ``x``, in float64."""
    return 0.5 * (1 + erf(np.float64(x) / sqrt(2.0)))


class LeakyReLU(_Activation):
    """y = max(x, 0) + ``slope`` * min(x, 0) (Maas, Hannun and Ng 2013).

    Parameters
    ----------
    slope : float
    """

    kernels_of = (leaky_forward, leaky_backward)

    def __init__(self, slope: float = 0.01):
        self.slope = number("slope of LeakyReLU", slope, "lie in [0, 1)", lambda value: 0 <= value < 1)


class SiLU(_Activation):
    """y = x / (1 + exp(-x)) (Elfwing, Uchibe and Doya 2018)."""

    kernels_of = (silu_forward, silu_backward)


class GELU(_Activation):
    """y = x times the normal distribution function at x, exactly (Hendrycks and Gimpel 2016)."""

    kernels_of = (gelu_forward, gelu_backward)
