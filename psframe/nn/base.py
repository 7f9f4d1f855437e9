"""Interface of a layer (:class:`Layer`), its tensors (:class:`Param`) and its memory (:class:`Workspace`).

Conventions
-----------
Activations are channels-last and C-contiguous: (n, H, W, C). A sequence is an image of height 1, (n, 1, T, C); dense
layers see (n, F). Shapes without ``n`` are those of one sample. Gradients are **sums over the samples** of a batch,
never means: a short or an empty batch is weighted by its size.

Weights have the meaning and the logical shape that they have in PyTorch, (out, in, kernel height, kernel width) and
(out, in); ``Param.order`` is the order of their axes in memory.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from psframe.nn.description import description
from psframe.nn.threads import Threads

Shape = tuple[int, ...]
Arrays = dict[str, np.ndarray]


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
    trained : bool
        True if the optimizer updates it; otherwise a step only subtracts the mean gradient.
    begin, of : int
        For a shard: its first row, and the number of rows of the full tensor. ``of`` is 0 if it is not a shard.
    """

    shape: Shape
    order: tuple[int, ...]
    bound: float = 0.0
    trained: bool = True
    begin: int = 0
    of: int = 0

    @property
    def whole(self) -> "Param":
        """The full tensor that this is a shard of, or itself."""
        return replace(self, shape=(self.of, *self.shape[1:]), begin=0, of=0) if self.of else self

    def rows(self, whole: np.ndarray) -> np.ndarray:
        """Return this shard's rows of the full tensor in logical order."""
        return whole[self.begin : self.begin + self.shape[0]] if self.of else whole

    def memory(self, logical: np.ndarray) -> np.ndarray:
        """Return the C-contiguous view, in memory order, of a view in logical order."""
        return logical.transpose(self.order)


@dataclass
class Pass:
    """Arguments of a forward pass besides its input.

    Attributes
    ----------
    train : bool
        True if a backward pass follows: dropout drops only then.
    seed, epoch : int
    samples : ndarray of int64, shape (n,)
        Sample numbers, for random numbers that do not depend on the rank.
    first : int
        Position of the pass's first sample among those whose outputs a layer keeps: a batch may be split into parts.
    adds : bool
        True if other passes of the step came before: this one adds its gradients to theirs.
    """

    train: bool = False
    seed: int = 0
    epoch: int = 0
    samples: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    first: int = 0
    adds: bool = False

    def part(self, begin: int, end: int) -> "Pass":
        """Return the arguments for the samples ``begin`` to ``end - 1`` of the batch."""
        adds = self.adds or begin > 0
        return Pass(self.train, self.seed, self.epoch, self.samples[begin:end], self.first + begin, adds)


@dataclass(frozen=True)
class LayerHook:
    """Function that backward calls on its way, with the gradients that have become complete.

    Attributes
    ----------
    layers : collection of int
        Numbers of layers in the model's list. When the gradients of such a layer and of all later ones are complete,
        backward pauses for the call.
    call : callable
        ``call(segment)`` receives the new slice of ``arena.grads``; the last one of a step begins at 0.
    """

    layers: Collection[int]
    call: Callable[[slice], None]


class Workspace:
    """Memory, threads and kernels of the layers.

    Parameters
    ----------
    max_batch : int
        Maximum number of samples of a pass.
    dtype : str
        float32 in training, or uint16 for bfloat16; gradient checks use float64.
    allocate : callable
        ``allocate(shape, dtype)`` returns an array with arbitrary contents.
    kernels : {'direct', 'blas'}
        Implementation of convolutions, dense layers and pooling: compiled loops, or NumPy and its BLAS.
    threads : Threads
    beside : callable
        ``beside(n_bytes)`` counts memory that a layer allocates elsewhere.
    n_kept : int
        Maximum number of passes that wait for their backward pass: a layer keeps the outputs of all.
    adds : bool
        True if a step has several passes, whose gradients are summed.
    """

    def __init__(
        self,
        max_batch: int,
        dtype: str,
        allocate: Callable[[Shape, str], np.ndarray],
        kernels: str = "direct",
        threads: Threads | None = None,
        beside: Callable[[int], None] = lambda n_bytes: None,
        n_kept: int = 1,
        adds: bool = False,
    ):
        self.max_batch, self.dtype, self.kernels, self.threads = max_batch, dtype, kernels, threads or Threads()
        self.beside, self.n_kept, self.adds = beside, n_kept, adds
        self.is_last = False  #: true while the layer is bound whose output is the network's
        is_half = dtype == "uint16"
        #: numbers along a sum in an element of a product, such elements, and sums; see :mod:`psframe.nn.pairs`
        self.in_one, self.elements, self.sums = (2, "uint32", "float32") if is_half else (1, dtype, dtype)
        self._allocate = allocate
        self._turns: list[np.ndarray] = []

    def array(self, shape: int | Shape, dtype: str | None = None) -> np.ndarray:
        """Return a layer's private array, of the network's dtype by default."""
        shape, dtype = (shape,) if isinstance(shape, int) else shape, dtype or self.dtype
        if dtype != "uint16":
            return self._allocate(shape, dtype)
        numbers = self._allocate((prod(shape) + 1,), dtype)  # one more, which a pair at the end reads
        numbers[-1] = 0
        return numbers[:-1].reshape(shape)

    def one(self) -> np.ndarray:
        """Return an element of a product that is 1, or a pair of these, in an array (1,)."""
        one = self.array(1, self.elements)
        one[0] = 0x3F803F80 if self.in_one == 2 else 1
        return one

    def batch(self, shape: Shape, dtype: str | None = None) -> np.ndarray:
        """Return a layer's private array, (max_batch, *shape)."""
        return self.array((self.max_batch, *shape), dtype)

    def kept(self, shape: Shape, dtype: str | None = None) -> np.ndarray:
        """Return an array for data that a layer keeps until backward, (n_kept * max_batch, *shape)."""
        return self.array((self.n_kept * self.max_batch, *shape), dtype)

    def output(self, shape: Shape) -> np.ndarray:
        """Return an array as from :meth:`kept` for a layer's output; of sums if that is the network's."""
        return self.kept(shape, self.sums if self.is_last else None)

    def take_turns(self, n_numbers: int) -> None:
        """Let the layers that follow write their input gradients to two arrays of ``n_numbers`` elements in turn.

        A layer's output gradient is not needed after its input gradient is written, so two arrays suffice.
        """
        self._turns = [self.array(n_numbers) for _ in range(2)]

    def input_gradient(self, shape: Shape) -> np.ndarray:
        """Return the array (..., *shape) for a layer's input gradient; each layer calls once, in network order."""
        if not self._turns:
            return self.batch(shape)
        self._turns.reverse()
        n = self._turns[0].size // prod(shape)
        return self._turns[0][: n * prod(shape)].reshape(n, *shape)


class Layer(Protocol):
    """Layer: created from hyper-parameters, then given its input shape (``setup``), then its arrays (``bind``)."""

    @property
    def params(self) -> Mapping[str, Param]: ...

    def setup(self, input_shape: Shape, index: int) -> Shape:
        """Return the output shape of one sample; ``index`` is the layer's position in the network.

        Sets ``self.params``. Raises UserError for an impossible shape.
        """

    def absorb(self, following: "Layer") -> bool:
        """Return True if this layer also does the following one's work from now on; called before ``bind``."""

    def bind(self, params: Arrays, grads: Arrays, workspace: Workspace) -> None:
        """Attach views of parameters and gradients (logical order), and allocate memory from the workspace."""

    def use(self, params: Arrays) -> None:
        """Switch to other views of the parameters: a step may have been written to other memory."""

    def initial(self, seed: int) -> Arrays:
        """Return, by name, the initial values of tensors that are not drawn from their bounds."""

    def describe(self) -> str:
        """Return a text that layers share only if they compute the same from equal parameters; call before ``bind``."""

    @property
    def flops(self) -> float | None:
        """Multiplications and additions of a forward pass for one sample; None if they follow from the weight."""

    @property
    def whole(self) -> bool:
        """True if a batch must not be split into parts, for speed: many weights, small samples."""

    @property
    def together(self) -> bool:
        """True if other ranks wait for its passes; then no layer of the network splits a batch into parts."""

    @property
    def kind(self) -> str:
        """Name of the layer's type in the names of tensors."""

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        """Return the output (n, ...) for ``x`` (n, ...), which the caller keeps until the backward pass.

        Both are C-contiguous. No layer writes to ``x``. The output may be ``x`` or a view of it.
        """

    def backward(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> Any:
        """Write the gradients of the parameters and return the input's (n, ...), or None without ``need_dx``.

        ``x`` and ``state`` are those of the forward pass. With ``state.adds`` the parameters' gradients are **added**
        to those of the earlier passes. ``dy`` has the output's shape, and may be overwritten.
        """


class Base:
    """Base class of layers: default implementations.

    Attributes
    ----------
    p, g : dict of str to ndarray
        Parameters and gradients, C-contiguous and in **memory** order.
    threads : Threads
    """

    params: Mapping[str, Param] = MappingProxyType({})
    whole = together = False
    flops: float | None = None

    @property
    def kind(self) -> str:
        return type(self).__name__

    def absorb(self, following: Layer) -> bool:
        return False

    def bind(self, params: Arrays, grads: Arrays, workspace: Workspace) -> None:
        self.p = {name: param.memory(params[name]) for name, param in self.params.items()}
        self.g = {name: param.memory(grads[name]) for name, param in self.params.items()}
        self.threads = workspace.threads
        self.kernels: Any = None

    def use(self, params: Arrays) -> None:
        self.p = {name: param.memory(params[name]) for name, param in self.params.items()}
        if self.kernels is not None:
            self.kernels.use(self.p)

    def initial(self, seed: int) -> Arrays:
        return {}

    def describe(self) -> str:
        return description(self)
