"""Interface of a layer (:class:`Layer`), its tensors (:class:`Param`), and a pass through it (:class:`Pass`).

Conventions
-----------
Activations are channels-last and C-contiguous: (n, H, W, C). A sequence is an image of height 1, (n, 1, T, C); dense
layers see (n, F). Shapes without ``n`` are those of one sample. Gradients are **sums over the samples** of a batch,
never means: a short or an empty batch is weighted by its size.

Weights have the meaning and the logical shape that they have in PyTorch, (out, in, kernel height, kernel width) and
(out, in); ``Param.order`` is the order of their axes in memory.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np

from psframe.nn.description import description
from psframe.nn.reads import Reads
from psframe.nn.workspace import Shape, Workspace

Arrays = dict[str, np.ndarray]
MEETS = ("", "batch", "workers")  #: samples that may meet in a layer, from none to most


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
    idle : bool
        True if its samples only keep those of other ranks company: they count in no statistic, and have no gradients.
    done : callable, optional
        Called with the gradients of a layer, or of all layers within one, once they are complete for this batch; with
        None, once those of all tensors that are not trained are.
    """

    train: bool = False
    seed: int = 0
    epoch: int = 0
    samples: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    first: int = 0
    adds: bool = False
    idle: bool = False
    done: Callable[[Arrays | None], None] | None = None

    def part(self, begin: int, end: int, n: int) -> "Pass":
        """Return the arguments for the samples ``begin`` to ``end - 1`` of the batch of ``n``."""
        adds, done = self.adds or begin > 0, self.done if end == n else None
        return replace(self, samples=self.samples[begin:end], first=self.first + begin, adds=adds, done=done)


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
        """True if a batch should not be split into parts, for speed: many weights, small samples."""

    @property
    def together(self) -> bool:
        """True if other ranks wait for its passes; then no layer of the network splits a batch into parts."""

    @property
    def meets(self) -> str:
        """The samples that meet in training: none (""), those of a worker's ``batch``, or those of all ``workers``.

        A layer in which they do has ``forward_steps`` and ``backward_steps``, too: the same as ``forward`` and
        ``backward``, as :data:`psframe.nn.steps.Steps`. Several batches may come to a meeting, each with a ``first``
        of its own.
        """

    @property
    def bfloat16(self) -> str:
        """How it computes with ``train.precision: bf16``: on ``arrays`` of bfloat16, or in PyTorch's ``autocast``.

        "" if it does not. With ``arrays``, activations, their gradients and parameters are bfloat16, in arrays of
        uint16; the gradients of parameters are float32.
        """

    @property
    def reads(self) -> Reads:
        """Passes over its input and its output in a training step; known once it is bound."""

    @property
    def kind(self) -> str:
        """Name of the layer's type in the names of tensors."""

    def note_statistics(self, n: int, state: Pass) -> None:
        """Write, or with ``state.adds`` add, the gradients of tensors that are not trained.

        Each is ``n`` times what a step is to subtract from the tensor for the forward pass of ``state``, which had
        ``n`` samples. Called before the first layer's backward pass, so that these gradients are complete with the
        last layer's, behind which they lie. Only for layers that have such tensors.
        """

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        """Return the output (n, ...) for ``x`` (n, ...), which the caller keeps until the backward pass.

        Both are C-contiguous. No layer writes to ``x``. The output may be ``x`` or a view of it. Before training, while
        kernels are compiled and not run, ``x`` may hold any numbers; none is an index that may be taken unchecked.
        """

    def backward(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> Any:
        """Write the gradients of the parameters and return the input's (n, ...), or None without ``need_dx``.

        ``x`` and ``state`` are those of the forward pass. With ``state.adds`` the parameters' gradients are **added**
        to those of the earlier passes. ``dy`` has the output's shape, and may be overwritten.
        """


class BaseLayer:
    """Base class of layers: default implementations.

    Attributes
    ----------
    p, g : dict of str to ndarray
        Parameters and gradients, C-contiguous and in **memory** order.
    threads : Threads
    """

    params: Mapping[str, Param] = MappingProxyType({})
    whole = together = False
    meets = bfloat16 = ""
    flops: float | None = None
    reads = Reads()

    @property
    def kind(self) -> str:
        return type(self).__name__

    def absorb(self, following: Layer) -> bool:
        return False

    def bind(self, params: Arrays, grads: Arrays, workspace: Workspace) -> None:
        self.p, self.g = self._in_memory(params), self._in_memory(grads)
        self.threads = workspace.threads
        self.kernels: Any = None

    def use(self, params: Arrays) -> None:
        self.p = self._in_memory(params)
        if self.kernels is not None:
            self.kernels.use(self.p)

    def _in_memory(self, arrays: Arrays) -> Arrays:
        return {name: param.memory(arrays[name]) for name, param in self.params.items()}

    def initial(self, seed: int) -> Arrays:
        return {}

    def note_statistics(self, n: int, state: Pass) -> None:
        """Do nothing: without statistics there is nothing to note."""

    def describe(self) -> str:
        return description(self)


def widest(layers: Iterable[Layer]) -> str:
    """Return ``meets`` of the layer in which most samples meet."""
    return max((layer.meets for layer in layers), key=MEETS.index, default="")


def running(layers: Sequence[Layer]) -> list[tuple[int, Layer]]:
    """Return the layers that run, with their positions: without those that the one before absorbs."""
    active: list[tuple[int, Layer]] = []
    for position, layer in enumerate(layers):
        if not (active and active[-1][1].absorb(layer)):
            active.append((position, layer))
    return active


def keeping_statistics(active: Iterable[tuple[int, Layer]]) -> list[Layer]:
    """Return the layers that have tensors which are not trained."""
    return [layer for _, layer in active if not all(param.trained for param in layer.params.values())]
