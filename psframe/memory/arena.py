"""Parameters, gradients and optimizer state as flat vectors (:class:`Arena`); only this module knows offsets."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np

from psframe import compiled
from psframe.memory.allocator import ALIGNMENT_BYTES, Allocator
from psframe.memory.extent import Extent, Places


class Tensor(Protocol):
    """Tensor in an arena: logical shape, order of its axes in memory, and True if an optimizer trains it."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def order(self) -> tuple[int, ...]: ...

    @property
    def trained(self) -> bool: ...


@dataclass(frozen=True)
class Slot:
    """Place of one tensor: ``vector[start:stop]``, in memory order."""

    start: int
    stop: int
    shape: tuple[int, ...]
    order: tuple[int, ...]

    def view(self, vector: np.ndarray) -> np.ndarray:
        """Return the tensor in its logical shape, without a copy."""
        in_memory = vector[self.start : self.stop].reshape([self.shape[axis] for axis in self.order])
        return in_memory.transpose(np.argsort(self.order))


class Layout:
    """Places of named tensors in a flat vector, each aligned to a cache line.

    Parameters
    ----------
    tensors : mapping of str to Tensor
        In memory order, except that trained tensors precede the others.

    Attributes
    ----------
    size : int
        Length of the vector: tensors, and zeros between them.
    n_trained : int
        Length of the part that an optimizer changes; from the rest, a step subtracts the mean gradient only.
    n_params : int
        Numbers in trained tensors.
    """

    def __init__(self, tensors: Mapping[str, Tensor], itemsize: int = 4):
        line = ALIGNMENT_BYTES // itemsize
        self.slots: dict[str, Slot] = {}
        self.size = self.n_trained = self.n_params = 0
        for name, tensor in sorted(tensors.items(), key=lambda item: not item[1].trained):
            n = prod(tensor.shape)
            self.slots[name] = Slot(self.size, self.size + n, tuple(tensor.shape), tuple(tensor.order))
            self.size += -(-n // line) * line
            if tensor.trained:
                self.n_trained, self.n_params = self.size, self.n_params + n
        if not self.slots:  # of a stage without parameters, whose ranks exchange a cache line of zeros
            self.size = self.n_trained = line

    @property
    def statistic(self) -> str:
        """Name of the first tensor that is not trained, within its module; "" if all are."""
        tensor_name = next((name for name, slot in self.slots.items() if slot.start >= self.n_trained), "")
        return tensor_name.split(".", 2)[-1]

    def extent(self, cuts: Places) -> Extent:
        """Return the vector's length, with the places at which an optimizer lets it be cut."""
        places = {
            "anywhere": None,
            "tensors": [slot.start for slot in self.slots.values()],
            "nowhere": [],
        }
        return Extent(self.size, places[cuts])

    def name(self, allocator: Allocator, vector: np.ndarray) -> None:
        """Name the tensors of a vector, which lie in memory from ``allocator``."""
        size = vector.itemsize
        allocator.name(vector, ((name, s.start * size, s.stop * size) for name, s in self.slots.items()))

    def gaps(self) -> list[slice]:
        """Return the slices between tensors, which layers never write: gradients must stay 0 there."""
        begins = [slot.start for slot in self.slots.values()] + [self.size]
        ends = [0] + [slot.stop for slot in self.slots.values()]
        return [slice(end, begin) for end, begin in zip(ends, begins, strict=True) if end < begin]

    def describe(self) -> str:
        """Return a text that is equal for two layouts only if their vectors are interchangeable."""
        return "; ".join(f"{name} {list(s.shape)} {list(s.order)} at {s.start}" for name, s in self.slots.items())


def described(text: str) -> dict[str, Slot]:
    """Return the slots in a text from :meth:`Layout.describe`; ValueError if it is malformed."""
    slots = {}
    for line in text.split("; "):
        match = re.fullmatch(r"(\S+) \[([0-9, ]*)\] \[([0-9, ]*)\] at ([0-9]+)", line)
        shape, order = (
            (tuple(int(n) for n in match[k].split(",") if n.strip()) for k in (2, 3)) if match else ((), (0,))
        )
        if match is None or sorted(order) != list(range(len(shape))):
            raise ValueError(f"{line[:80]!r} is no place of a tensor")
        slots[match[1]] = Slot(int(match[4]), int(match[4]) + prod(shape), shape, order)
    return slots


@dataclass(frozen=True)
class Keeping:
    """Retention of the values that a step replaces.

    Attributes
    ----------
    copies : int
        Copies of private parameters and state on a rank that applies updates; 2 if a step may have to be dropped.
    drops_unsound : bool
        True if an unsound step is dropped.
    bfloat16 : bool
        True to have the parameters as bfloat16, too, which updates write. Only for modes and ranks whose parameters
        nothing but updates change from step to step.
    outlives_server : bool
        True to have a server's parameters and state where the other ranks of its node read them when it has died.
    """

    copies: int = 1
    drops_unsound: bool = False
    bfloat16: bool = False
    outlives_server: bool = False


ONE_COPY = Keeping()


@dataclass(frozen=True)
class Vectors:
    """Memory of an arena: one copy of parameters and state, or two if a step writes the copy that is not read.

    ``params_bf16`` are the copies of the parameters as bfloat16, uint16 (layout.size,), or none.
    """

    params: Sequence[np.ndarray]
    grads: np.ndarray
    state: Sequence[np.ndarray]
    params_bf16: Sequence[np.ndarray] = ()


class Arena:
    """Vectors of one rank.

    Parameters
    ----------
    vectors : Vectors, optional
        Existing memory, such as that shared by a node's ranks; by default it is allocated from ``allocator``.
    shared : bool, optional
        By default, True if ``vectors`` is given.
    keeping : Keeping
        Copies of parameters and state, if allocated here; and what becomes of an unsound step.

    Attributes
    ----------
    params, grads : ndarray, shape (layout.size,)
        float32 in training; gradient checks use float64. With ``params_bf16``, a worker that receives its parameters
        receives these alone.
    state : ndarray, shape (n_state, layout.size)
        Optimizer state; empty on ranks that apply no update.
    new_params, new_state : ndarray
        Output of an update: the same arrays, or others that :meth:`commit` makes current.
    params_bf16, new_params_bf16 : ndarray of uint16, shape (layout.size,), or None
        ``params`` and ``new_params`` as bfloat16.
    version : int
        Number of committed steps.
    stays : bool
        False: a step changes the arena. An unchanging holder of parameters says True.
    shared : bool
        True if other ranks have the same parameters and state in the same memory.
    dropped : int
        Number of unsound steps, which were not committed.
    drops_unsound : bool
        True if an unsound step is to be dropped.
    nonfinite : bool
        True if the current or last step is unsound; never without ``drops_unsound``.
    of_server : Vectors or None
        On a rank that receives its parameters, those of its server, and the optimizer state; None if out of reach.
    """

    nonfinite = stays = False
    dropped = 0
    of_server: Vectors | None = None

    def __init__(
        self,
        layout: Layout,
        n_state: int,
        allocator: Allocator,
        dtype: str = "float32",
        vectors: Vectors | None = None,
        shared: bool | None = None,
        keeping: Keeping = ONE_COPY,
    ):
        self.layout, self.version, self.drops_unsound = layout, 0, keeping.drops_unsound
        self.shared = vectors is not None if shared is None else shared
        if vectors is None:
            vectors = Vectors(
                [allocator.zeros(layout.size, dtype, "parameters") for _ in range(keeping.copies)],
                allocator.zeros(layout.size, dtype, "gradients"),
                [allocator.zeros((n_state, layout.size), dtype, "optimizer") for _ in range(keeping.copies)],
                [allocator.zeros(layout.size, "uint16", "parameters") for _ in range(keeping.copies)]
                if keeping.bfloat16
                else (),
            )
        self.vectors, self.grads = vectors, vectors.grads
        for vector in (*vectors.params, vectors.grads, *(row for rows in vectors.state for row in rows)):
            layout.name(allocator, vector)
        for vector in vectors.params_bf16:
            layout.name(allocator, vector)
        self._point()

    def _point(self) -> None:
        params, state = self.vectors.params, self.vectors.state
        self.params, self.new_params = params[self.version % len(params)], params[(self.version + 1) % len(params)]
        self.state, self.new_state = state[self.version % len(state)], state[(self.version + 1) % len(state)]
        self.params_bf16 = self.new_params_bf16 = None
        if copies := self.vectors.params_bf16:
            self.params_bf16 = copies[self.version % len(copies)]
            self.new_params_bf16 = copies[(self.version + 1) % len(copies)]

    @property
    def published(self) -> np.ndarray:
        """What layers read of the parameters, as a server sends it: float32, or bfloat16 in half as many float32."""
        return self.params if self.params_bf16 is None else self.params_bf16.view(np.float32)

    @property
    def new_published(self) -> np.ndarray:
        """``new_params`` as a server sends them: float32, or bfloat16 in half as many float32."""
        if self.new_params_bf16 is None:
            return self.new_params
        return self.new_params_bf16.view(np.float32)

    def refresh_bf16(self) -> None:
        """Write ``params_bf16`` anew, after parameters were written otherwise than by an update."""
        if self.params_bf16 is not None:
            compiled.elementwise.narrow(self.params, self.params_bf16)

    def commit(self) -> None:
        """Make the updated vectors current."""
        self.version += 1
        self._point()

    def end_step(self) -> None:
        """End a step: make the updated vectors current if the step is sound."""
        if self.nonfinite:
            self.dropped += 1
        else:
            self.commit()

    @property
    def complete(self) -> tuple[np.ndarray, np.ndarray]:
        """Parameters (S,) and optimizer state (n_state, S) after the last step that this rank knows to be committed.

        A server writes the next step's elsewhere, and these only when this rank has sent gradients once more.
        """
        if self.of_server is None:
            return self.params, self.state
        params, state = self.of_server.params, self.of_server.state
        return params[self.version % len(params)], state[self.version % len(state)]

    @property
    def steps_ended(self) -> int:
        """Number of steps committed or dropped."""
        return self.version + self.dropped

    def place_of(self, gradient: np.ndarray) -> slice:
        """Return where in the vectors a tensor lies, from its view of ``grads``."""
        start = (gradient.ctypes.data - self.grads.ctypes.data) // self.grads.itemsize
        return slice(start, start + gradient.size)

    def views(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Return every tensor of ``vector`` by name, as a view in its logical shape."""
        return {name: slot.view(vector) for name, slot in self.layout.slots.items()}
