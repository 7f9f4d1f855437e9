"""Numbers that layers compute with (:data:`TABLE`): those of the arena, or bfloat16 beside it (:class:`BFloat16`)."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from psframe import compiled
from psframe.errors import UserError
from psframe.memory.arena import Arena
from psframe.nn import subnormal
from psframe.nn.base import Arrays, Layer, Pass
from psframe.nn.vectors import host
from psframe.nn.workspace import Shape, Workspace

Allocate = Callable[[Shape, str], np.ndarray]  #: returns an array with arbitrary contents


class Float32:
    """The arena's own numbers: nothing is converted.

    Attributes
    ----------
    dtype : str
        Type of the activations in memory; ``uint16`` holds bfloat16.
    autocasts : bool
        True if PyTorch's modules are to compute under its autocast for bfloat16.
    """

    dtype, autocasts = "float32", False

    def __init__(self, arena: Arena, allocate: Allocate):
        self.arena, self.dtype = arena, arena.params.dtype.name

    def params(self) -> list[Arrays]:
        """Return what layers read of the parameters, by the arena's version modulo the number of versions kept."""
        return [self.arena.views(vector) for vector in self.arena.vectors.params]

    def refresh(self) -> None:
        """Follow a change of the parameters."""

    def allocate_ends(self, workspace: Workspace, input_shape: Shape | None, n_classes: int) -> None:
        """Allocate what the first layer's input and the last one's gradient need, if they are this network's."""

    def input(self, x: np.ndarray, state: Pass) -> np.ndarray:
        """Return samples (n, ...) as the first layer takes them."""
        return x

    def logits(self, y: np.ndarray, state: Pass) -> np.ndarray:
        """Return the last layer's output as the loss takes it."""
        return y

    def gradient(self, dy: np.ndarray) -> np.ndarray:
        """Return the loss's gradient as the last layer takes it."""
        return dy

    def arithmetic(self) -> AbstractContextManager[None]:
        """Return a context to compute in."""
        return nullcontext()


class BFloat16(Float32):
    """Activations, their gradients and what layers read of the parameters in bfloat16; sums, gradients of parameters,
    and the arena's parameters, which an optimizer updates, in float32.

    Raises
    ------
    UserError
        This CPU can neither multiply pairs of bfloat16 nor add exact products.
    """

    dtype = "uint16"

    def __init__(self, arena: Arena, allocate: Allocate):
        super().__init__(arena, allocate)
        self.dtype = BFloat16.dtype
        if not self.available():
            raise UserError(
                "train.precision: bf16 must have a CPU with fused multiply-adds (x86 with AVX2, or newer), got another "
                "one; give train.precision=float32"
            )
        self.kept = bool(arena.vectors.params_bf16)  # by updates; else written anew for each pass
        self.copies = list(arena.vectors.params_bf16)
        if not self.kept:
            self.copies = [allocate((arena.layout.size,), self.dtype)]

    @staticmethod
    def available() -> bool:
        """Return True if this CPU can multiply pairs of bfloat16, by one instruction or by two."""
        return subnormal.AVAILABLE and host().fma

    def params(self) -> list[Arrays]:
        n = len(self.arena.vectors.params)
        return [self.arena.views(self.copies[version % len(self.copies)]) for version in range(n)]

    def refresh(self) -> None:
        if not self.kept:
            compiled.elementwise.narrow(self.arena.params, self.copies[0])

    def allocate_ends(self, workspace: Workspace, input_shape: Shape | None, n_classes: int) -> None:
        self.x = workspace.kept(input_shape) if input_shape else None
        self.dlogits = workspace.batch((n_classes,))
        self.wide = workspace.kept((n_classes,), workspace.sums)

    def input(self, x: np.ndarray, state: Pass) -> np.ndarray:
        if self.x is None or x.dtype == np.uint16:
            return x
        rounded = self.x[state.first : state.first + len(x)]
        narrow(x, rounded)
        return rounded

    def logits(self, y: np.ndarray, state: Pass) -> np.ndarray:
        if y.dtype != np.uint16:
            return y
        wide = self.wide[state.first : state.first + len(y)]
        widen(y, wide)
        return wide

    def gradient(self, dy: np.ndarray) -> np.ndarray:
        narrow(dy, self.dlogits[: len(dy)])
        return self.dlogits[: len(dy)]

    def arithmetic(self) -> AbstractContextManager[None]:
        return subnormal.flushed()


def widen(x: np.ndarray, y: np.ndarray) -> None:
    """Write ``x``, bfloat16, as float32 to ``y`` of its shape."""
    np.left_shift(x, 16, out=y.view(np.uint32), dtype=np.uint32, casting="unsafe")


def narrow(x: np.ndarray, y: np.ndarray) -> None:
    """Write ``x``, float32, as bfloat16 to ``y`` of its shape; both contiguous."""
    compiled.elementwise.narrow(x.reshape(-1), y.reshape(-1))


class Autocast(Float32):
    """PyTorch's own choice of bfloat16 or float32 for each operation; the arena is float32."""

    autocasts = True


def chosen(name: str, layers: Sequence[Layer]) -> type[Float32]:
    """Return the precision of a network by its name in :data:`TABLE`; UserError if a layer does not compute in it."""
    if name != "bf16":
        return TABLE[name]
    for number, layer in enumerate(layers):
        if layer.bfloat16 != layers[0].bfloat16 or not layer.bfloat16:
            raise UserError(
                f"train.precision: bf16 must have layers that compute in it, got layer {number}, {layer.kind}, which "
                "does not; give train.precision=float32, or a model without it"
            )
    return Autocast if layers[0].bfloat16 == "autocast" else BFloat16


TABLE: dict[str, type[Float32]] = {"float32": Float32, "bf16": BFloat16}
