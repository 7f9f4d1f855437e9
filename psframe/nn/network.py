"""A network: layers in a row, their tensors in an arena, their buffers for the largest batch."""

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import takewhile
from math import prod

import numpy as np

from psframe import compiled
from psframe.arena import Arena, Layout
from psframe.errors import UserError
from psframe.memory.allocator import Allocator
from psframe.nn.base import Arrays, Layer, Param, Pass, Shape, Workspace
from psframe.nn.losses import softmax_cross_entropy
from psframe.nn.threads import Threads

PART_BYTES = 1 << 20  # of outputs that the front layers keep for a part of a batch


class Network:
    """Layers that have been told their shapes; :meth:`bind` gives them memory.

    Parameters
    ----------
    layers : sequence of Layer
        Some of which may absorb the one that follows.
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
        self.shapes = [shape]  # of each layer's input, and of the output
        for index, layer in enumerate(self.layers):
            shape = layer.setup(shape, index)
            self.shapes.append(shape)
        if shape != (n_classes,):
            raise UserError(f"a model must end in one number a class, ({n_classes},), got {shape}; mend its last layer")
        self.params: dict[str, Param] = {
            f"{index}.{type(layer).__name__}.{name}": param
            for index, layer in enumerate(self.layers)
            for name, param in layer.params.items()
        }
        self.layout = Layout(self.params)
        #: where the parameters of each layer, and of those behind it, begin in the arena's vectors
        self.begins: list[int] = []
        for index in range(len(self.layers)):
            starts = [s.start for name, s in self.layout.slots.items() if int(name.partition(".")[0]) >= index]
            self.begins.append(min(starts, default=self.layout.size))
        self.n_classes = n_classes
        #: the layers that run, without those that another one has absorbed, by their numbers
        self.active: list[tuple[int, Layer]] = []
        for index, layer in enumerate(self.layers):
            if not (self.active and self.active[-1][1].absorb(layer)):
                self.active.append((index, layer))

    @property
    def flops(self) -> float:
        """Multiplications and additions of a training step for one sample: three products for each weight and place."""
        return 3 * sum(map(self.flops_forward, range(len(self.layers))))

    def flops_forward(self, index: int) -> float:
        """Return the multiplications and additions of a layer's forward pass for one sample; 0 without weights."""
        own, weight = self.layers[index].flops, self.layers[index].params.get("weight")
        if own is not None:
            return own
        return 2.0 * prod(weight.shape) * prod(self.shapes[index + 1][:-1]) if weight else 0.0

    def bind(
        self,
        arena: Arena,
        max_batch: int,
        allocator: Allocator,
        kernels: str = "direct",
        threads: Threads | None = None,
    ) -> None:
        """Give the layers their views of ``arena`` and memory for batches of up to ``max_batch`` samples."""
        self.arena = arena
        workspace = Workspace(
            max_batch,
            arena.params.dtype.name,
            lambda shape, dtype: allocator.zeros(shape, dtype, "activations"),
            kernels,
            threads,
            lambda n_bytes: allocator.count("activations", n_bytes),
        )
        self.front = [layer for _, layer in takewhile(lambda active: not active[1].whole, self.active)]
        self.rest = [layer for _, layer in self.active[len(self.front) :]]
        self.part = self._part(workspace)
        inputs = [prod(self.shapes[index]) for index, _ in self.active]
        grads = arena.views(arena.grads)
        #: each layer's views of the parameters, by the version of the arena, modulo how many it keeps
        self.params_of_layers = [self._by_layer(arena.views(vector)) for vector in arena.vectors.params]
        self.version = arena.version
        params = self._current()
        for number, (_, layer) in enumerate(self.active):
            if number == 0 and self.front:
                workspace.take_turns(self.part * max(inputs[: len(self.front)]))
            if number == len(self.front):
                workspace.take_turns(max_batch * max(inputs[number:]))
            layer.bind(params[number], self._by_layer(grads)[number], workspace)
        # where the parts of a batch come together
        self.joined = workspace.batch(self.shapes[self.active[len(self.front)][0]] if self.rest else (self.n_classes,))
        self.dlogits = workspace.batch((self.n_classes,))

    def _by_layer(self, views: Arrays) -> list[Arrays]:
        """Return named tensors by active layer, under the names that they have in it."""
        return [
            {name: views[f"{index}.{type(layer).__name__}.{name}"] for name in layer.params}
            for index, layer in self.active
        ]

    def _current(self) -> list[Arrays]:
        return self.params_of_layers[self.version % len(self.params_of_layers)]

    def _follow(self) -> None:
        """Let the layers see the parameters of the arena's version."""
        if self.version != self.arena.version:
            self.version = self.arena.version
            if len(self.params_of_layers) > 1:
                for (_, layer), params in zip(self.active, self._current(), strict=True):
                    layer.use(params)

    def _part(self, workspace: Workspace) -> int:
        """Return how many samples go through the front layers together: what they leave should stay in a cache."""
        # to wake threads for every layer of every part would take longer than a cache can save
        if workspace.kernels == "blas" or workspace.threads.n > 1 or not self.front:
            return workspace.max_batch
        n_bytes = sum(prod(self.shapes[index + 1]) for index, _ in self.active[: len(self.front)]) * 4
        return min(workspace.max_batch, max(1, PART_BYTES // n_bytes))

    def fixed(self) -> str:
        """Return a text that two networks share only if what they keep beside the arena is the same."""
        return "".join(
            f"; layer {index} with {kept}" for index, layer in enumerate(self.layers) if (kept := layer.fixed())
        )

    def initialize(self, seed: int) -> None:
        """Draw the initial parameters: uniform, in each tensor's own bounds, or as its layer gives them."""
        own = [layer.initial(seed) for layer in self.layers]
        for index, (name, view) in enumerate(self.arena.views(self.arena.params).items()):
            param = self.params[name]
            if param.bound:
                drawn = np.empty((1, view.size), np.float32)
                compiled.random.uniform(seed, compiled.random.INITIAL, 0, np.array([index]), drawn)
                view[...] = (2 * drawn.reshape(view.shape) - 1) * param.bound
            layer, _, within = name.split(".", 2)
            if within in own[int(layer)]:
                view[...] = own[int(layer)][within]

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        """Return the logits (n, n_classes) of ``x`` (n, H, W, C), channels last."""
        self._follow()
        n = len(x)
        self._inputs: list[list[np.ndarray]] = []
        for begin in range(0, n, self.part):
            end = min(begin + self.part, n)
            y = self._through(self.front, x[begin:end], state.part(begin, end))
            if end - begin < n:
                self.joined[begin:end] = y
        return self._through(self.rest, y if self.part >= n else self.joined[:n], state)

    def _through(self, layers: list[Layer], x: np.ndarray, state: Pass) -> np.ndarray:
        self._inputs.append([])
        for layer in layers:
            self._inputs[-1].append(x)
            x = layer.forward(x, state)
        return x

    def gradients(
        self,
        x: np.ndarray,
        labels: np.ndarray,
        state: Pass,
        boundaries: Collection[int] = (),
        leave: Callable[[slice], None] | None = None,
    ) -> tuple[float, int]:
        """Forward and backward: write the gradients of the summed loss into the arena.

        Parameters
        ----------
        x : ndarray, shape (n, H, W, C)
        labels : ndarray of int64, shape (n,)
        boundaries : collection of int
            Numbers of layers, as the model lists them. When the gradients of such a layer and of all behind it are
            done, backward pauses and lets those that have not left yet leave.
        leave : callable, optional
            ``leave(segment)`` is told which part of ``arena.grads`` is done; the last call takes it to the beginning.

        Returns
        -------
        loss : float
            Summed over the n samples.
        n_correct : int
        """
        end = self.layout.size
        if len(x) == 0:
            self.arena.grads[:] = 0
            loss, n_correct = 0.0, 0
        else:
            logits = self.forward(x, state)
            dy = self.dlogits[: len(x)]
            loss, n_correct = softmax_cross_entropy(logits, labels, dy)
            for number in self._back(dy, state):
                index = self.active[number][0]
                if leave and index in boundaries and self.begins[index] < end:
                    leave(slice(self.begins[index], end))
                    end = self.begins[index]
        if leave and end:
            leave(slice(0, end))
        return loss, n_correct

    def _back(self, dy: np.ndarray, state: Pass) -> Iterator[int]:
        """Go back through the layers; yield the number, among the active ones, of each that has all its gradients."""
        inputs, n_front = self._inputs.pop(), len(self.front)
        for number in reversed(range(len(self.rest))):
            # nobody asks for the gradient of the images
            dy = self.rest[number].backward(inputs[number], dy, state, n_front + number > 0)
            yield n_front + number
        for part, inputs in enumerate(self._inputs if n_front else ()):
            begin, end = part * self.part, min((part + 1) * self.part, len(dy))
            of_part, of_state = dy[begin:end], state.part(begin, end)
            for number in reversed(range(n_front)):
                of_part = self.front[number].backward(inputs[number], of_part, of_state, number > 0)
                if part == len(self._inputs) - 1:
                    yield number

    def evaluate(self, x: np.ndarray, labels: np.ndarray) -> tuple[float, int]:
        """Return the summed loss and the number of samples classified right; changes no gradient."""
        if len(x) == 0:
            return 0.0, 0
        logits = self.forward(x, Pass())
        return softmax_cross_entropy(logits, labels, self.dlogits[: len(x)])
