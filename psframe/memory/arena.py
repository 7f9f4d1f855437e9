"""Parameters, gradients and optimizer state as three flat vectors; the only place that knows offsets."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np

from psframe.memory.allocator import ALIGNMENT_BYTES, Allocator


class Tensor(Protocol):
    """What the arena must know of a tensor: its logical shape, in which order its axes lie in memory, its role."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def order(self) -> tuple[int, ...]: ...

    @property
    def trained(self) -> bool: ...


@dataclass(frozen=True)
class Slot:
    """Where one tensor lies: ``vector[start:stop]``, in memory order."""

    start: int
    stop: int
    shape: tuple[int, ...]
    order: tuple[int, ...]

    def view(self, vector: np.ndarray) -> np.ndarray:
        """Return the tensor in its logical shape, without a copy."""
        in_memory = vector[self.start : self.stop].reshape([self.shape[axis] for axis in self.order])
        return in_memory.transpose(np.argsort(self.order))


class Layout:
    """The places of named tensors in a flat vector, each on a cache line of its own.

    Parameters
    ----------
    tensors : mapping of str to Tensor
        In the order in which they are laid out, those that are trained before the others.

    Attributes
    ----------
    size : int
        Length of the vector, tensors and the zeros between them.
    n_trained : int
        Length of the part that an optimizer changes; behind it a step takes away the mean gradient alone.
    n_params : int
        Numbers that belong to tensors which are trained.
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
        if not self.slots:  # of a stage without parameters, whose ranks exchange a line of zeros
            self.size = self.n_trained = line

    @property
    def statistic(self) -> str:
        """The name of a tensor that is not trained, as its module has it, or ""."""
        found = next((name for name, slot in self.slots.items() if slot.start >= self.n_trained), "")
        return found.split(".", 2)[-1]

    def gaps(self) -> list[slice]:
        """Return the places between tensors: a layer never writes to its gradients' ones, which are to stay zeros."""
        begins = [slot.start for slot in self.slots.values()] + [self.size]
        ends = [0] + [slot.stop for slot in self.slots.values()]
        return [slice(end, begin) for end, begin in zip(ends, begins, strict=True) if end < begin]

    def describe(self) -> str:
        """Return a text that two layouts share only if a vector of one can be read as the other."""
        return "; ".join(f"{name} {list(s.shape)} {list(s.order)} at {s.start}" for name, s in self.slots.items())


def described(text: str) -> dict[str, Slot]:
    """Return the slots that :meth:`Layout.describe` has written down; ValueError where it has not."""
    found = {}
    for line in text.split("; "):
        match = re.fullmatch(r"(\S+) \[([0-9, ]*)\] \[([0-9, ]*)\] at ([0-9]+)", line)
        shape, order = (
            (tuple(int(n) for n in match[k].split(",") if n.strip()) for k in (2, 3)) if match else ((), (0,))
        )
        if match is None or sorted(order) != list(range(len(shape))):
            raise ValueError(f"{line[:80]!r} is no place of a tensor")
        found[match[1]] = Slot(int(match[4]), int(match[4]) + prod(shape), shape, order)
    return found


@dataclass(frozen=True)
class Keeping:
    """How much of what a step replaces is kept.

    Attributes
    ----------
    copies : int
        Of private parameters and state on a rank that applies updates; 2 where a step may have to be dropped.
    guarded : bool
        Whether a step that is not sound is dropped.
    """

    copies: int = 1
    guarded: bool = False


ONE_COPY = Keeping()


@dataclass(frozen=True)
class Vectors:
    """The memory of an arena: parameters and optimizer state once, or twice where a step writes beside what is read."""

    params: Sequence[np.ndarray]
    grads: np.ndarray
    state: Sequence[np.ndarray]


class Arena:
    """The vectors of one rank.

    Parameters
    ----------
    vectors : Vectors, optional
        Memory that stands already, as that which the ranks of a node share; by default it is taken from ``allocator``.
    shared : bool, optional
        By default whether ``vectors`` are given.
    copies : int
        Of parameters and state, where the memory is taken here: 2 to keep what was before a step.

    Attributes
    ----------
    params, grads : ndarray, shape (layout.size,)
        float32 in training; gradient checks use float64.
    state : ndarray, shape (n_state, layout.size)
        What the optimizer keeps for each parameter; empty on ranks that apply no update.
    new_params, new_state : ndarray
        Where an update is written: the same arrays, or others that :meth:`commit` makes the current ones.
    version : int
        Steps that were committed.
    stays : bool
        False: a step changes it.
    shared : bool
        Whether other ranks have the same parameters and state in the same memory.
    dropped : int
        Steps that were not committed, since they were not sound.
    guarded : bool
        Whether a step that is not sound is to be dropped.
    wild : bool
        Whether the step that is being written, or was written last, is not sound; never where not ``guarded``.
    """

    wild = stays = False
    dropped = 0

    def __init__(
        self,
        layout: Layout,
        n_state: int,
        allocator: Allocator,
        dtype: str = "float32",
        vectors: Vectors | None = None,
        shared: bool | None = None,
        copies: int = 1,
        guarded: bool = False,
    ):
        self.layout, self.version, self.guarded = layout, 0, guarded
        self.shared = vectors is not None if shared is None else shared
        if vectors is None:
            vectors = Vectors(
                [allocator.zeros(layout.size, dtype, "parameters") for _ in range(copies)],
                allocator.zeros(layout.size, dtype, "gradients"),
                [allocator.zeros((n_state, layout.size), dtype, "optimizer") for _ in range(copies)],
            )
        self.vectors, self.grads = vectors, vectors.grads
        self._point()

    def _point(self) -> None:
        params, state = self.vectors.params, self.vectors.state
        self.params, self.new_params = params[self.version % len(params)], params[(self.version + 1) % len(params)]
        self.state, self.new_state = state[self.version % len(state)], state[(self.version + 1) % len(state)]

    def commit(self) -> None:
        """Make what was updated current."""
        self.version += 1
        self._point()

    def close(self) -> None:
        """End a step: make what was updated current, if it is sound."""
        if self.wild:
            self.dropped += 1
        else:
            self.commit()

    @property
    def taken(self) -> int:
        """Steps that were committed or dropped."""
        return self.version + self.dropped

    def views(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Return every tensor of ``vector`` by name, as views in logical shape."""
        return {name: slot.view(vector) for name, slot in self.layout.slots.items()}
