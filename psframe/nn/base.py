"""What a layer is.

Conventions
-----------
Inside a network activations are channels-last and C-contiguous: (n, H, W, C); a sequence is an image of height 1,
(n, 1, T, C); dense layers see (n, F). Shapes without ``n`` are those of one sample. Gradients are **sums over the
samples** of a batch, never means: so that a short or an empty batch weighs what it holds.

Weights keep the meaning and the logical shape they have in PyTorch, (out, in, kernel height, kernel width) and
(out, in); ``Param.order`` says in which order their axes lie in memory.
"""

from collections.abc import Callable, Mapping
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
        Whether the optimizer changes it; else a step takes away the mean gradient alone, as it is.
    begin, of : int
        Where it is a shard: its rows begin there, in a tensor of so many. ``of`` is 0 where it is whole.
    """

    shape: Shape
    order: tuple[int, ...]
    bound: float = 0.0
    trained: bool = True
    begin: int = 0
    of: int = 0

    @property
    def whole(self) -> "Param":
        """The tensor that it is a shard of, or itself."""
        return replace(self, shape=(self.of, *self.shape[1:]), begin=0, of=0) if self.of else self

    def rows(self, whole: np.ndarray) -> np.ndarray:
        """Return, of the whole tensor in logical order, what this one is."""
        return whole[self.begin : self.begin + self.shape[0]] if self.of else whole

    def memory(self, logical: np.ndarray) -> np.ndarray:
        """Return the C-contiguous view in memory order of a view in logical order."""
        return logical.transpose(self.order)


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
    first : int
        The place, among the samples whose outputs a layer keeps, of the pass's first one: a batch may be done in parts.
    adds : bool
        Whether other passes of the step came before: to their gradients those of this one are added.
    """

    train: bool = False
    seed: int = 0
    epoch: int = 0
    samples: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    first: int = 0
    adds: bool = False

    def part(self, begin: int, end: int) -> "Pass":
        """Return what is told of the samples ``begin`` to ``end`` of the batch."""
        adds = self.adds or begin > 0
        return Pass(self.train, self.seed, self.epoch, self.samples[begin:end], self.first + begin, adds)


class Workspace:
    """The memory and the means that layers compute with.

    Parameters
    ----------
    max_batch : int
        Most samples of a pass.
    dtype : str
        float32 in training; gradient checks use float64.
    allocate : callable
        ``allocate(shape, dtype)`` gives an array that holds anything.
    kernels : {'direct', 'blas'}
        Which code computes convolutions and dense layers.
    threads : Threads
    beside : callable
        ``beside(n_bytes)`` is told of memory that a layer will have from elsewhere.
    n_kept : int
        Passes whose backward passes are still to come, at most: a layer keeps the outputs of all.
    adds : bool
        Whether a step has several passes, whose gradients are added up.
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
        self._allocate = allocate
        self._turns: list[np.ndarray] = []

    def array(self, shape: int | Shape, dtype: str | None = None) -> np.ndarray:
        """Return an array for a layer alone, of the network's dtype unless ``dtype`` is given."""
        return self._allocate((shape,) if isinstance(shape, int) else shape, dtype or self.dtype)

    def batch(self, shape: Shape, dtype: str | None = None) -> np.ndarray:
        """Return an array for a layer alone, (max_batch, *shape)."""
        return self.array((self.max_batch, *shape), dtype)

    def kept(self, shape: Shape, dtype: str | None = None) -> np.ndarray:
        """Return an array for what a layer keeps until the backward pass, (n_kept * max_batch, *shape)."""
        return self.array((self.n_kept * self.max_batch, *shape), dtype)

    def take_turns(self, n_numbers: int) -> None:
        """Let the layers that follow write the gradients of their inputs to two arrays of ``n_numbers`` in turn.

        What a layer has been given is of no use once it has given its own.
        """
        self._turns = [self.array(n_numbers) for _ in range(2)]

    def input_gradient(self, shape: Shape) -> np.ndarray:
        """Return the array (..., *shape) for what a layer's backward returns; each calls once, in their order."""
        if not self._turns:
            return self.batch(shape)
        self._turns.reverse()
        n = self._turns[0].size // prod(shape)
        return self._turns[0][: n * prod(shape)].reshape(n, *shape)


class Layer(Protocol):
    """A layer is made from its hyper-parameters, then told its input's shape, then given its arrays."""

    @property
    def params(self) -> Mapping[str, Param]: ...

    def setup(self, input_shape: Shape, index: int) -> Shape:
        """Return the output's shape for one sample; ``index`` is the layer's place in the network.

        Fills ``self.params``. UserError for impossible shapes.
        """

    def absorb(self, following: "Layer") -> bool:
        """Return whether this layer does the work of the one that follows, too, from now on; called before ``bind``."""

    def bind(self, params: Arrays, grads: Arrays, workspace: Workspace) -> None:
        """Take the views of the parameters and their gradients (logical order), and memory from the workspace."""

    def use(self, params: Arrays) -> None:
        """Compute with other views of the parameters from now on: a step may have been written to other memory."""

    def initial(self, seed: int) -> Arrays:
        """Return the initial values of tensors that are not drawn from their bounds, by name."""

    def describe(self) -> str:
        """Return a text that layers share only if they compute the same from the same parameters; before ``bind``."""

    @property
    def flops(self) -> float | None:
        """Multiplications and additions of a forward pass for one sample; None where they follow from the weight."""

    @property
    def whole(self) -> bool:
        """Whether a batch must not be done in parts, for speed: the layer's weights are many and its samples small."""

    @property
    def together(self) -> bool:
        """Whether other ranks wait for its passes, so that no layer before it should do a batch in parts either."""

    @property
    def kind(self) -> str:
        """What it is called among the names of tensors."""

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        """Return the output (n, ...) for ``x`` (n, ...), which is kept until the backward pass.

        Both are C-contiguous. No layer writes to ``x``, and an output may be ``x`` or a view of it.
        """

    def backward(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> Any:
        """Write the gradients of the parameters and return the input's (n, ...), or None without ``need_dx``.

        ``x`` and ``state`` are those of the forward pass. With ``state.adds`` the parameters' gradients are **added**
        to those of the passes before. ``dy`` has the output's shape, and may be overwritten.
        """


class Base:
    """The parts that layers share.

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
