"""Layers that a batch passes in parts, or as one (:class:`Section`); the number of samples in a part."""

from collections.abc import Callable, Sequence
from itertools import takewhile
from math import prod
from typing import Any, Protocol

import numpy as np

from psframe.nn import steps
from psframe.nn.base import Arrays, Layer, Pass
from psframe.nn.steps import Steps
from psframe.nn.workspace import Shape, Workspace

PART_BYTES = 2 << 20  # of the front layers' outputs for a part of a batch, or more if their weights are


def front(active: Sequence[tuple[int, Layer]]) -> Sequence[tuple[int, Layer]]:
    """Return the layers, from the first on, that process a batch in parts."""
    # parts between two meetings were slower: each normalization has to keep its gradient until all parts are there
    return [*takewhile(lambda numbered: not (numbered[1].whole or numbered[1].meets), active)]


def part_of(
    active: Sequence[tuple[int, Layer]],
    shapes: Sequence[Shape],
    itemsize: int,
    max_batch: int,
    kernels: str,
    n_threads: int,
) -> int:
    """Return the number of samples that pass the front layers together, the same for all stages of a network.

    Their outputs stay in a cache, or are as many as the weights, which every part reads anew. ``active`` and ``shapes``
    are those of the complete network, ``itemsize`` the bytes of an output's number.
    """
    layers = front(active)
    # waking threads for every layer of every part would take longer than a cache saves
    if kernels == "blas" or n_threads > 1 or not layers or any(layer.together for _, layer in active):
        return max_batch
    n_outputs = sum(prod(shapes[index + 1]) for index, _ in layers)
    n_weights = sum(prod(param.shape) for _, layer in layers for param in layer.params.values())
    part = max(2, max(PART_BYTES // itemsize, n_weights) // n_outputs)
    return min(max_batch, part - part % 2)  # even, since bfloat16 pairs samples


class Stage(Protocol):
    """Network that a section is part of."""

    active: list[tuple[int, Layer]]

    def shape_before(self, number: int) -> Shape: ...


class Section:
    """Layers that a batch passes in parts of up to ``part`` samples, one after the other, or as one.

    Samples of different parts do not meet.

    Parameters
    ----------
    stage : Stage
    own : slice
        Positions of the layers in ``stage.active``.
    grads : sequence of Arrays
        Their gradients.
    part : int
    workspace : Workspace
    """

    def __init__(self, stage: Stage, own: slice, grads: Sequence[Arrays], part: int, workspace: Workspace):
        self.begin, self.grads, self.part = own.start, grads, part
        self.layers = [layer for _, layer in stage.active[own]]
        self.arithmetic = workspace.arithmetic
        self.joined = self.joined_dx = None
        if part < workspace.max_batch:
            self.joined = workspace.kept(stage.shape_before(own.stop), workspace.output_dtype)
            # an earlier stage, or section, needs it
            self.joined_dx = workspace.batch(stage.shape_before(own.start)) if own.start else None
        #: of each pass that waits for its backward pass, by its first sample: the layers' inputs, by part
        self.inputs: dict[int, list[list[np.ndarray]]] = {}

    def _parts(self, n: int) -> list[tuple[int, int]]:
        """Return begin and end of each part of ``n`` samples."""
        return [(begin, min(begin + self.part, n)) for begin in range(0, n, self.part)]

    def forward(self, x: np.ndarray, state: Pass) -> Steps[np.ndarray]:
        """Return the output (n, ...) for ``x`` (n, ...)."""
        n, parts = len(x), self._parts(len(x))
        inputs = self.inputs[state.first] = [[] for _ in parts]
        if len(parts) == 1:
            return (yield from steps.forward(self.layers, x, state, inputs[0], self.arithmetic, self.begin))
        assert self.joined is not None
        joined = self.joined[state.first : state.first + n]
        for (begin, end), of_part in zip(parts, inputs, strict=True):
            own = state.part(begin, end, n)
            through = steps.forward(self.layers, x[begin:end], own, of_part, self.arithmetic, self.begin)
            joined[begin:end] = steps.finish(through)
        return joined

    def backward(self, dy: np.ndarray, state: Pass, done: Callable[[int], None]) -> Steps[Any]:
        """Return the gradient of the input, None of the first layer's.

        ``done`` is called with the position, in ``stage.active``, of each layer whose gradients are complete.
        """
        n, parts, needs_dx = len(dy), self._parts(len(dy)), self.begin > 0

        def back(of_part: np.ndarray, own: Pass, inputs: list[np.ndarray], is_last: bool) -> Steps[Any]:
            tell = (lambda number: done(self.begin + number)) if is_last else None
            return steps.backward(
                self.layers, self.grads, inputs, of_part, own, needs_dx, tell, self.arithmetic, self.begin
            )

        inputs = self.inputs[state.first]
        if len(parts) == 1:
            return (yield from back(dy, state, inputs[0], True))
        for (begin, end), of_part in zip(parts, inputs, strict=True):
            dx = steps.finish(back(dy[begin:end], state.part(begin, end, n), of_part, end == n))
            if self.joined_dx is not None:
                self.joined_dx[begin:end] = dx
        return self.joined_dx[:n] if self.joined_dx is not None else None
