"""What a layer is.

Conventions
-----------
Inside a network activations are channels-last and C-contiguous: (n, H, W, C); a sequence is an image of height 1,
(n, 1, T, C); dense layers see (n, F). Shapes without ``n`` are those of one sample. Gradients are **sums over the
samples** of a batch, never means: so that a short or an empty batch weighs what it holds.

Weights keep the meaning and the logical shape they have in PyTorch, (out, in, kernel height, kernel width) and
(out, in); ``Param.order`` says in which order their axes lie in memory.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import numpy as np

from psframe.errors import UserError

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

    def setup(self, input_shape: Shape, index: int) -> Shape:
        """Return the output's shape for one sample; ``index`` is the layer's place in the network.

        Fills ``self.params`` (name to Param) and ``self.buffers`` (name to Buffer). UserError for impossible shapes.
        """

    def bind(self, params: dict[str, np.ndarray], grads: dict[str, np.ndarray], buffers: dict[str, np.ndarray]) -> None:
        """Take the views of the parameters and their gradients (logical order), and the buffers for a full batch."""

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        """Return the output (n, ...) for ``x`` (n, ...), n at most what the buffers were made for; both are kept until
        the backward pass."""

    def backward(self, dy: np.ndarray, need_dx: bool) -> np.ndarray | None:
        """Write the gradients of the parameters and return the input's, or None without ``need_dx``.

        ``dy`` has the shape of the last forward pass's output, and may be overwritten.
        """


class Base:
    """The parts that layers without parameters or buffers share."""

    params: ClassVar[dict[str, Param]] = {}
    buffers: ClassVar[dict[str, Buffer]] = {}

    def bind(self, params: dict[str, np.ndarray], grads: dict[str, np.ndarray], buffers: dict[str, np.ndarray]) -> None:
        self.p, self.g, self.b = params, grads, buffers


def pair(name: str, value: int | tuple[int, int], low: int) -> tuple[int, int]:
    """Return ``value`` as (height, width); UserError where either is less than ``low`` or no whole number."""
    both = (value, value) if isinstance(value, int) else tuple(value)
    if len(both) != 2 or not all(isinstance(v, int) and v >= low for v in both):
        raise UserError(
            f"{name} must be a whole number or a pair of them, each at least {low}, got {value!r}; mend the model"
        )
    return both[0], both[1]
