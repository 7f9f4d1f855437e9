"""A network: layers in a row, their tensors in an arena, their buffers for the largest batch."""

from collections.abc import Sequence

import numpy as np

from psframe import compiled
from psframe.arena import Arena, Layout
from psframe.errors import UserError
from psframe.memory.allocator import Allocator
from psframe.nn.base import Layer, Param, Pass, Shape
from psframe.nn.losses import softmax_cross_entropy


class Network:
    """Layers that have been told their shapes; :meth:`bind` gives them memory.

    Parameters
    ----------
    layers : sequence of Layer
    input_shape : tuple of int
        (C, H, W), or (C, T) for sequences.
    n_classes : int

    Raises
    ------
    UserError
        Where a layer cannot take its input, or the last one does not give one number a class.
    """

    def __init__(self, layers: Sequence[Layer], input_shape: Shape, n_classes: int):
        self.layers = list(layers) if isinstance(layers, Sequence) else []
        if not self.layers or not all(hasattr(layer, "setup") for layer in self.layers):
            raise UserError(f"a model must be a list of layers, got {layers!r}; return one from its build function")
        channels, *rest = input_shape
        self.input_shape: Shape = (*([1] * (2 - len(rest))), *rest, channels)
        shape = self.input_shape
        for index, layer in enumerate(self.layers):
            shape = layer.setup(shape, index)
        if shape != (n_classes,):
            raise UserError(f"a model must end in one number a class, ({n_classes},), got {shape}; mend its last layer")
        self.params: dict[str, Param] = {
            f"{index}.{type(layer).__name__}.{name}": param
            for index, layer in enumerate(self.layers)
            for name, param in layer.params.items()
        }
        self.layout = Layout(self.params)
        self.n_classes = n_classes

    def bind(self, arena: Arena, max_batch: int, allocator: Allocator) -> None:
        """Give the layers their views of ``arena`` and buffers for batches of up to ``max_batch`` samples."""
        self.arena = arena
        dtype = arena.params.dtype
        params, grads = arena.views(arena.params), arena.views(arena.grads)
        for index, layer in enumerate(self.layers):
            names = {name: f"{index}.{type(layer).__name__}.{name}" for name in layer.params}
            buffers = {
                name: allocator.zeros((max_batch, *b.shape), b.dtype or dtype, "activations")
                for name, b in layer.buffers.items()
            }
            layer.bind(
                {short: params[name] for short, name in names.items()},
                {short: grads[name] for short, name in names.items()},
                buffers,
            )
        self.dlogits = allocator.zeros((max_batch, self.n_classes), dtype, "activations")

    def initialize(self, seed: int) -> None:
        """Draw the initial parameters: uniform, in each tensor's own bounds, the same on every rank."""
        for index, (name, view) in enumerate(self.arena.views(self.arena.params).items()):
            param = self.params[name]
            if param.bound:
                drawn = np.empty((1, view.size), np.float32)
                compiled.random.uniform(seed, compiled.random.INITIAL, 0, np.array([index]), drawn)
                view[...] = (2 * drawn.reshape(view.shape) - 1) * param.bound

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        """Return the logits (n, n_classes) of ``x`` (n, H, W, C), channels last."""
        for layer in self.layers:
            x = layer.forward(x, state)
        return x

    def gradients(self, x: np.ndarray, labels: np.ndarray, state: Pass) -> tuple[float, int]:
        """Forward and backward: write the gradients of the summed loss into the arena.

        Parameters
        ----------
        x : ndarray, shape (n, H, W, C)
        labels : ndarray of int64, shape (n,)

        Returns
        -------
        loss : float
            Summed over the n samples.
        n_correct : int
        """
        if len(x) == 0:
            self.arena.grads[:] = 0
            return 0.0, 0
        logits = self.forward(x, state)
        dy = self.dlogits[: len(x)]
        loss, n_correct = softmax_cross_entropy(logits, labels, dy)
        for layer in reversed(self.layers[1:]):
            dy = layer.backward(dy, need_dx=True)
        self.layers[0].backward(dy, need_dx=False)  # nobody asks for the gradient of the images
        return loss, n_correct

    def evaluate(self, x: np.ndarray, labels: np.ndarray) -> tuple[float, int]:
        """Return the summed loss and the number of samples classified right; changes no gradient."""
        logits = self.forward(x, Pass())
        return softmax_cross_entropy(logits, labels, self.dlogits[: len(x)])
