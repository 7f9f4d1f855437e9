"""Passes that stop where samples meet (:data:`Steps`), and go on in step with each other (:func:`in_step`).

Batch normalization needs numbers of all samples before it can pass the first one on. So a pass is a generator: it
yields a :data:`Meeting` there, and goes on once that has been called. In between, the parts of a batch pass some layers
one after the other, while their activations are in a cache.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from psframe.nn.base import Arrays, Layer, Pass
from psframe.nn.workspace import Arithmetic
from psframe.record.flight import BACKWARD, FORWARD, RING

Meeting = Callable[[], None]  #: concludes from what all passes have brought; called once for all of them
T = TypeVar("T")
Steps = Generator[Meeting, None, T]


def finish(steps: Steps[T]) -> T:
    """Run a pass, or several in step, to its end; return the result."""
    while True:
        try:
            meeting = next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        meeting()


def in_step(passes: Sequence[Steps[T]]) -> Steps[list[T]]:
    """Run passes with the same meetings from one to the next, each in its turn; return their results."""
    results: dict[int, T] = {}
    while len(results) < len(passes):
        meeting = None
        for number, steps in enumerate(passes):
            if number not in results:
                try:
                    meeting = next(steps)
                except StopIteration as end:
                    results[number] = end.value
        if meeting:
            yield meeting
    return [results[number] for number in range(len(passes))]


def forward(
    layers: Sequence[Layer],
    x: np.ndarray,
    state: Pass,
    inputs: list[np.ndarray],
    arithmetic: Arithmetic = nullcontext,
    first: int = 0,
) -> Steps[np.ndarray]:
    """Pass ``x`` (n, ...) through layers; put their inputs in ``inputs``, and return the last output.

    ``first`` is the number of the first layer, for the flight recorder.
    """
    inputs.clear()
    for number, layer in enumerate(layers, first):
        inputs.append(x)
        if layer.meets:
            x = yield from layer.forward_steps(x, state)  # type: ignore[attr-defined]
        else:
            depth = RING.enter(FORWARD, number)
            with arithmetic():
                x = layer.forward(x, state)
            RING.leave(depth)
    return x


def backward(
    layers: Sequence[Layer],
    grads: Sequence[Arrays],
    inputs: Sequence[np.ndarray],
    dy: np.ndarray,
    state: Pass,
    need_dx: bool,
    done: Callable[[int], None] | None = None,
    arithmetic: Arithmetic = nullcontext,
    first: int = 0,
) -> Steps[Any]:
    """Go back through layers; return the gradient of the first one's input, or anything without ``need_dx``.

    ``grads`` are their gradients, which ``state.done`` is told of; a layer that meets tells of its own. ``done`` is
    called with the number of each layer after it. ``first`` is as in :func:`forward`.
    """
    for number in reversed(range(len(layers))):
        layer, needed = layers[number], need_dx or number > 0
        if layer.meets:
            dy = yield from layer.backward_steps(inputs[number], dy, state, needed)  # type: ignore[attr-defined]
        else:
            depth = RING.enter(BACKWARD, first + number)
            with arithmetic():
                dy = layer.backward(inputs[number], dy, state, needed)
            RING.leave(depth)
            if state.done:
                state.done(grads[number])
        if done:
            done(number)
    return dy


class Stepping:
    """Base class of layers that have ``forward_steps`` and ``backward_steps``: the other two by these."""

    forward_steps: Callable[..., Steps[np.ndarray]]
    backward_steps: Callable[..., Steps[Any]]

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        return finish(self.forward_steps(x, state))

    def backward(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> Any:
        return finish(self.backward_steps(x, dy, replace(state, done=None), need_dx))
