"""Parameters, gradients and optimizer state as three flat vectors; the only place that knows offsets."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Protocol

import numpy as np

from psframe.memory.allocator import ALIGNMENT_BYTES, Allocator


class Tensor(Protocol):
    """What the arena must know of a tensor: its logical shape and in which order its axes lie in memory."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def order(self) -> tuple[int, ...]: ...


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
        In the order in which they are laid out.

    Attributes
    ----------
    size : int
        Length of the vector, tensors and the zeros between them.
    n_params : int
        Numbers that belong to tensors.
    """

    def __init__(self, tensors: Mapping[str, Tensor], itemsize: int = 4):
        line = ALIGNMENT_BYTES // itemsize
        self.slots: dict[str, Slot] = {}
        self.size = 0
        for name, tensor in tensors.items():
            n = prod(tensor.shape)
            self.slots[name] = Slot(self.size, self.size + n, tuple(tensor.shape), tuple(tensor.order))
            self.size += -(-n // line) * line
        self.n_params = sum(slot.stop - slot.start for slot in self.slots.values())

    def describe(self) -> str:
        """Return a text that two layouts share only if a vector of one can be read as the other."""
        return "; ".join(f"{name} {list(s.shape)} {list(s.order)} at {s.start}" for name, s in self.slots.items())


class Arena:
    """The vectors of one rank.

    Attributes
    ----------
    params, grads : ndarray, shape (layout.size,)
        float32 in training; gradient checks use float64.
    state : ndarray, shape (n_state, layout.size)
        What the optimizer keeps for each parameter; empty on ranks that apply no update.
    """

    def __init__(self, layout: Layout, n_state: int, allocator: Allocator, dtype: str = "float32"):
        self.layout = layout
        self.params = allocator.zeros(layout.size, dtype, "parameters")
        self.grads = allocator.zeros(layout.size, dtype, "gradients")
        self.state = allocator.zeros((n_state, layout.size), dtype, "optimizer")

    def views(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Return every tensor of ``vector`` by name, as views in logical shape."""
        return {name: slot.view(vector) for name, slot in self.layout.slots.items()}
