"""What a layer is.

Conventions
-----------
Inside a network activations are channels-last and C-contiguous: (n, H, W, C); a sequence is an image of height 1,
(n, 1, T, C); dense layers see (n, F). Shapes without ``n`` are those of one sample. Gradients are **sums over the
samples** of a batch, never means: so that a short or an empty batch weighs what it holds.

Weights keep the meaning and the logical shape they have in PyTorch, (out, in, kernel height, kernel width) and
(out, in); ``Param.order`` says in which order their axes lie in memory.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from psframe.errors import UserError, nearest

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Param:
    """One tensor of a layer.

    Attributes
    ----------
    shape : tuple of int
        Logical shape, as in PyTorch.
    order : tuple of int
        Axes of ``shape`` from the outermost to the innermost in memory.
    bound : float
        Initial values are uniform in [-bound, bound].
    """

    shape: Shape
    order: tuple[int, ...]
    bound: float = 0.0

    def memory(self, logical: np.ndarray) -> np.ndarray:
        """Return the C-contiguous view in memory order of a view in logical order."""
        return logical.transpose(self.order)


@dataclass(frozen=True)
class Buffer:
    """A scratch array of a layer for a batch of n: (n, *shape), of the network's dtype unless ``dtype`` is given."""

    shape: Shape
    dtype: str | None = None


@dataclass
class Pass:
    """What a forward pass is told beside its input.

    Attributes
    ----------
    train : bool
        Whether a backward pass follows: dropout drops only then.
    seed, epoch : int
    samples : ndarray of int64, shape (n,)
        Sample numbers, for random numbers that do not depend on the rank.
    """

    train: bool = False
    seed: int = 0
    epoch: int = 0
    samples: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))


class Layer(Protocol):
    """A layer is made from its hyper-parameters, then told its input's shape, then given its arrays."""

    @property
    def params(self) -> Mapping[str, Param]: ...

    @property
    def buffers(self) -> Mapping[str, Buffer]: ...

    def setup(self, input_shape: Shape, index: int) -> Shape:
        """Return the output's shape for one sample; ``index`` is the layer's place in the network.

        Fills ``self.params`` and ``self.buffers``. UserError for impossible shapes.
        """

    def bind(self, params: dict[str, np.ndarray], grads: dict[str, np.ndarray], buffers: dict[str, np.ndarray]) -> None:
        """Take the views of the parameters and their gradients (logical order), and the buffers for the largest batch.

        Buffers hold anything at first, and belong to this layer alone.
        """

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        """Return the output (n, ...) for ``x`` (n, ...), n at most what the buffers were made for; both are kept until
        the backward pass: no layer writes to ``x``, and an output may be ``x`` or a view of it."""

    def backward(self, dy: np.ndarray, need_dx: bool) -> Any:
        """Write the gradients of the parameters and return the input's (n, ...), or None without ``need_dx``.

        ``dy`` has the shape of the last forward pass's output, and may be overwritten.
        """


class Base:
    """The parts that layers share.

    Attributes
    ----------
    p, g : dict of str to ndarray
        Parameters and gradients, C-contiguous and in **memory** order.
    b : dict of str to ndarray
        Buffers for the largest batch; a pass uses their first n rows.
    """

    params: Mapping[str, Param] = MappingProxyType({})
    buffers: Mapping[str, Buffer] = MappingProxyType({})

    def bind(self, params: dict[str, np.ndarray], grads: dict[str, np.ndarray], buffers: dict[str, np.ndarray]) -> None:
        self.p = {name: param.memory(params[name]) for name, param in self.params.items()}
        self.g = {name: param.memory(grads[name]) for name, param in self.params.items()}
        self.b = buffers


def whole(name: str, value: object, low: int) -> int:
    """Return ``value``; UserError where it is no whole number or less than ``low``."""
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise UserError(f"{name} must be a whole number of at least {low}, got {value!r}; mend the model")
    return value


def pair(name: str, value: int | tuple[int, int], low: int, axes: int = 2) -> tuple[int, int]:
    """Return ``value`` as (height, width); UserError where either is less than ``low`` or no whole number.

    With one of the ``axes``, a sequence's, ``value`` is the width, and the height does nothing: a kernel or a stride of
    1 and a padding of 0, which is ``low``.
    """
    if axes == 1:
        return low, whole(name, value, low)
    if isinstance(value, (tuple, list)) and len(value) == 2:
        return whole(name, value[0], low), whole(name, value[1], low)
    width = whole(f"{name} (or each of a pair)", value, low)
    return width, width


def image(layer: object, index: int, shape: Shape, axes: int = 2) -> tuple[int, int, int]:
    """Return ``shape`` as (H, W, C); UserError where it is none, or where ``axes`` is 1 and it is no sequence."""
    if len(shape) != 3:
        raise UserError(
            f"layer {index}, {type(layer).__name__}, must get images (H, W, C), got {shape}; place it before Flatten"
        )
    if axes == 1 and shape[0] != 1:
        raise UserError(
            f"layer {index}, {type(layer).__name__}, must get sequences (1, T, C), got {shape}; use its 2-D sibling"
        )
    return shape[0], shape[1], shape[2]


_GAIN = {"xavier": 3.0, "he": 6.0}


def bound(init: str, fan_in: int) -> float:
    """Return the bound of uniform initial weights.

    ``xavier``: variance 1 / fan_in, as Caffe does it (after Glorot and Bengio 2010); ``he``: variance 2 / fan_in
    (He et al. 2015, eq. 10), for what a ReLU follows.
    """
    if init not in _GAIN:
        raise UserError(f"init must name a distribution, got {init!r}; {nearest(init, _GAIN)}")
    return sqrt(_GAIN[init] / fan_in)
