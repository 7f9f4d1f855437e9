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
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

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
