"""Layers with arrays of their own, without a network or an arena."""

from collections.abc import Sequence

import numpy as np

from psframe.nn.base import Layer, Pass, Shape
from psframe.nn.threads import Threads
from psframe.nn.workspace import Workspace
from tests.helpers.bfloat16_model import rounded

#: NaN, also of bfloat16 and of pairs of these
JUNK = {"float32": np.nan, "float64": np.nan, "uint16": 0x7FC0, "uint32": 0x7FC07FC0}


def half(x: np.ndarray) -> np.ndarray:
    """Return float32 as bfloat16, in the same order in memory."""
    order = np.argsort([-stride for stride in x.strides], kind="stable")
    in_memory = x.transpose(order)
    return rounded(in_memory).reshape(in_memory.shape).transpose(np.argsort(order))


class Bench:
    """Layers in a row for batches of up to ``max_batch``; their arrays hold junk at first.

    ``params`` and ``grads`` are lists, in the layers' order, of (logical) views as a network hands them out. With
    ``dtype`` uint16, activations and weights are bfloat16, and are given as such.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        input_shape: Shape,
        max_batch: int,
        dtype: str = "float64",
        kernels: str = "direct",
        n_threads: int = 1,
    ):
        self.layers, self.input_shape, self.dtype = list(layers), input_shape, dtype
        self.params: list[np.ndarray] = []
        self.grads: list[np.ndarray] = []
        shape, rng = input_shape, np.random.default_rng(0)
        workspace = Workspace(max_batch, dtype, self._junk, kernels, Threads(n_threads))
        for index, layer in enumerate(self.layers):
            shape = layer.setup(shape, index)
            params = {name: self._tensor(p, rng.uniform(-0.5, 0.5, p.shape)) for name, p in layer.params.items()}
            if dtype == "uint16":
                params = {name: half(view) for name, view in params.items()}
            grads = {name: self._tensor(p, np.nan) for name, p in layer.params.items()}
            layer.bind(params, grads, workspace)
            self.params += params.values()
            self.grads += grads.values()
        self.output_shape = shape

    def _tensor(self, param, values) -> np.ndarray:
        dtype = "float32" if self.dtype == "uint16" else self.dtype
        in_memory = self.empty([param.shape[axis] for axis in param.order], dtype)
        logical = in_memory.transpose(np.argsort(param.order))
        logical[...] = values
        return logical

    @staticmethod
    def empty(shape: Sequence[int], dtype: str) -> np.ndarray:
        """Return memory for a tensor or a layer's array."""
        return np.empty(shape, dtype)

    def _junk(self, shape: Shape, dtype: str, tensor: str) -> np.ndarray:
        junk = self.empty(shape, dtype)
        junk.fill(JUNK.get(junk.dtype.name, 113))
        return junk

    def forward(self, x: np.ndarray, state: Pass | None = None) -> np.ndarray:
        self.inputs, self.state = [], state or Pass()
        for layer in self.layers:
            self.inputs.append(x)
            x = layer.forward(x, self.state)
        return x

    def backward(self, dy: np.ndarray) -> np.ndarray:
        """Return the input's gradient; ``dy`` is left as it is."""
        dy = dy.copy()
        for layer in self.layers:
            layer.note_statistics(len(dy), self.state)
        for layer, x in zip(reversed(self.layers), reversed(self.inputs), strict=True):
            dy = layer.backward(x, dy, self.state, True)
        return dy
