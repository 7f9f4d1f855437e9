"""Layers one after the other within a layer (:class:`Chain`)."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from psframe.errors import UserError
from psframe.nn import steps
from psframe.nn.base import Arrays, Layer, Param, Pass, Shape, keeping_statistics, running
from psframe.nn.operations import of_layer
from psframe.nn.workspace import Workspace

FIRST = 1000  # number of the first layer within a layer: behind those of any network


class Chain:
    """Layers in sequence, as part of a layer; a layer may absorb the one that follows.

    Parameters
    ----------
    layers : sequence of Layer
        None at all returns its input.
    """

    def __init__(self, layers: Sequence[Layer]):
        self.layers = list(layers)
        self.active: list[tuple[int, Layer]] = []
        self._inputs: dict[int, list[np.ndarray]] = {}

    def setup(self, input_shape: Shape, index: int, begin: int, where: str) -> Shape:
        """Return the output shape of one sample; the chain's first layer is number ``begin`` of layer ``index``."""
        shape, self.shapes = input_shape, [input_shape]
        for number, layer in enumerate(self.layers, begin):
            of_layer = FIRST * (index + 1) + number
            try:
                shape = layer.setup(shape, of_layer)
            except UserError as error:
                place = f"layer {number - begin} of layer {index}'s {where}"
                raise UserError(str(error).replace(f"layer {of_layer}", place)) from None
            self.shapes.append(shape)
        self.active = running(self.layers)
        self.begin, self.running = begin, [layer for _, layer in self.active]
        return shape

    def give_last(self, kind: type) -> Any:
        """Return the last layer, if it is of that kind and has absorbed none, and let the caller run it; else None."""
        is_last = bool(self.running) and self.running[-1] is self.layers[-1]
        return self.running.pop() if is_last and isinstance(self.running[-1], kind) else None

    @property
    def params(self) -> dict[str, Param]:
        """Tensors of all layers, by number, kind and name."""
        return {f"{self._prefix(k, layer)}{name}": p for k, layer in self.active for name, p in layer.params.items()}

    @property
    def flops(self) -> float:
        return sum(of_layer(layer, shape) for layer, shape in zip(self.layers, self.shapes[1:], strict=True))

    def _prefix(self, number: int, layer: Layer) -> str:
        return f"{self.begin + number}.{layer.kind}."

    def _own(self, arrays: Arrays, number: int, layer: Layer) -> Arrays:
        return {name: arrays[f"{self._prefix(number, layer)}{name}"] for name in layer.params}

    def bind(self, params: Arrays, grads: Arrays, workspace: Workspace) -> None:
        """Bind the layers; ``workspace`` is one of :meth:`Workspace.branch`."""
        workspace.take_turns(max(map(prod, self.shapes)))
        self.arithmetic = workspace.arithmetic
        self.grads = [self._own(grads, number, layer) for number, layer in self.active]
        for (number, layer), own in zip(self.active, self.grads, strict=True):
            layer.bind(self._own(params, number, layer), own, workspace)
        self.keep_statistics = keeping_statistics(self.active)

    def use(self, params: Arrays) -> None:
        for number, layer in self.active:
            layer.use(self._own(params, number, layer))

    def initial(self, seed: int) -> Arrays:
        return {
            f"{self._prefix(number, layer)}{name}": values
            for number, layer in self.active
            for name, values in layer.initial(seed).items()
        }

    def describe(self) -> str:
        return ", ".join(layer.describe() for layer in self.layers)

    def note_statistics(self, n: int, state: Pass) -> None:
        for layer in self.keep_statistics:
            layer.note_statistics(n, state)

    def forward(self, x: np.ndarray, state: Pass) -> steps.Steps[np.ndarray]:
        return steps.forward(self.running, x, state, self._inputs.setdefault(state.first, []), self.arithmetic)

    def backward(self, dy: np.ndarray, state: Pass, need_dx: bool) -> steps.Steps[Any]:
        """Write the gradients; return that of the input, or anything without ``need_dx``. ``dy`` is overwritten."""
        inputs = self._inputs[state.first]
        return steps.backward(self.running, self.grads, inputs, dy, state, need_dx, arithmetic=self.arithmetic)
