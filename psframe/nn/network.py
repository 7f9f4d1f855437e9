"""Network of layers in sequence (:class:`Network`): tensors in an arena, buffers for the largest batch."""

from collections.abc import Callable, Iterator, Sequence
from math import prod

import numpy as np

from psframe.errors import UserError
from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena, Layout
from psframe.nn import checks
from psframe.nn.base import Arrays, Layer, LayerHook, Param, Pass, Shape, keeping_statistics, running
from psframe.nn.batch_parts import front, part_of
from psframe.nn.losses import Labels, softmax_cross_entropy
from psframe.nn.precision import chosen
from psframe.nn.threads import Threads
from psframe.nn.workspace import Workspace

Observer = Callable[[np.ndarray, np.ndarray], None]  #: takes logits (n, n_classes) and labels (n,), valid in the call


class Network:
    """Layers with known shapes; :meth:`bind` gives them memory.

    It may be one of several stages of a complete network: it then holds and computes its own layers only.

    Parameters
    ----------
    layers : sequence of Layer
        A layer may absorb the one that follows.
    input_shape : tuple of int
        (C, H, W), or (C, T) for sequences.
    n_classes : int
    own : slice, optional
        This stage's layers, as positions in :attr:`active`; by default all.
    precision : str
        Key of :data:`psframe.nn.precision.TABLE`.

    Attributes
    ----------
    whole : Layout
        Tensors of the complete network; ``layout`` has those of this stage.
    active : list of (int, Layer)
        Layers that run, with their numbers; absorbed ones are left out. :attr:`own` is this stage's slice of it.

    Raises
    ------
    UserError
        A layer cannot take its input, or does not compute in the precision, or the last one does not return one number
        per class.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        input_shape: Shape,
        n_classes: int,
        own: slice = slice(None),
        precision: str = "float32",
    ):
        self.layers: list[Layer] = checks.layers(layers)
        self._kind = chosen(precision, self.layers)
        channels, *rest = input_shape
        self.input_shape: Shape = (*([1] * (2 - len(rest))), *rest, channels)
        shape = self.input_shape
        self.shapes = [shape]  # of each layer's input, and of the output
        for index, layer in enumerate(self.layers):
            shape = layer.setup(shape, index)
            self.shapes.append(shape)
        if shape != (n_classes,):
            raise UserError(f"a model must end in one number a class, ({n_classes},), got {shape}; mend its last layer")
        self.n_classes = n_classes
        self.active = running(self.layers)
        self.own = slice(*own.indices(len(self.active))[:2])
        self.whole = Layout({name: param.whole for name, param in self.stage(slice(None)).items()})
        self.params = self.stage(self.own)
        self.layout = Layout(self.params)
        #: offset in the arena's vectors at which the parameters of each layer, and of the later ones, begin
        starts = [(int(name.partition(".")[0]), slot.start) for name, slot in self.layout.slots.items()]
        n, size = len(self.layers), self.layout.size
        self.begins = [min((start for number, start in starts if number >= index), default=size) for index in range(n)]

    def stage(self, own: slice) -> dict[str, Param]:
        """Return the tensors of a slice of :attr:`active`, by their names in the complete network."""
        return {
            f"{index}.{layer.kind}.{name}": param
            for index, layer in self.active[own]
            for name, param in layer.params.items()
        }

    @property
    def dtype(self) -> str:
        """Type of the activations in memory; ``uint16`` holds bfloat16."""
        return self._kind.dtype

    def shape_before(self, number: int) -> Shape:
        """Return the input shape of the layer at a position in :attr:`active`; at its end, the output's shape."""
        return self.shapes[self.active[number][0]] if number < len(self.active) else self.shapes[-1]

    def bind(
        self,
        arena: Arena,
        max_batch: int,
        allocator: Allocator,
        kernels: str = "direct",
        threads: Threads | None = None,
        n_kept: int = 1,
        adds: bool = False,
    ) -> None:
        """Give the layers their views of ``arena`` and memory for batches of up to ``max_batch`` samples.

        Up to ``n_kept`` batches may wait for their backward pass; with ``adds`` a step has several passes.
        """
        self.arena = arena
        self.precision = self._kind(arena, lambda shape, dtype: allocator.zeros(shape, dtype, "parameters"))
        workspace = Workspace(
            max_batch,
            self.precision.dtype,
            lambda shape, dtype: allocator.zeros(shape, dtype, "activations"),
            kernels,
            threads,
            lambda n_bytes: allocator.count("activations", n_bytes),
            n_kept,
            adds,
            self._kind.autocasts,
        )
        self.part = part_of(self.active, self.shapes, max_batch, kernels, workspace.threads.n)
        own_layers = self.active[self.own]
        n_front = max(0, min(len(front(self.active)), self.own.stop) - self.own.start)
        self.front, self.rest = ([layer for _, layer in part] for part in (own_layers[:n_front], own_layers[n_front:]))
        self.keep_statistics = keeping_statistics(own_layers)
        inputs = [prod(self.shapes[index]) for index, _ in own_layers]
        grads = arena.views(arena.grads)
        #: each layer's views of the parameters, by the arena's version modulo the number of versions kept
        self.params_of_layers = [self._by_layer(views) for views in self.precision.params()]
        self.version = arena.version
        params = self._current()
        for number, (_, layer) in enumerate(own_layers):
            if number == 0 and self.front:
                workspace.take_turns(self.part * max(inputs[:n_front]))
            if number == n_front:
                workspace.take_turns(max_batch * max(inputs[number:]))
            workspace.is_last = self.own.start + number == len(self.active) - 1
            layer.bind(params[number], self._by_layer(grads)[number], workspace)
        # buffers that join the parts of a batch and of its gradient; an earlier stage needs the latter
        self.joined = workspace.kept(self.shape_before(self.own.start + n_front))
        self.joined_dx = workspace.batch(self.shape_before(self.own.start)) if self.front and self.own.start else None
        n_logits = self.n_classes if self.is_last else 0
        self.dlogits = workspace.array((max_batch, n_logits), workspace.sums)
        self.precision.allocate_ends(workspace, None if self.own.start else self.input_shape, n_logits)
        self._inputs: dict[int, list[list[np.ndarray]]] = {}

    def _by_layer(self, views: Arrays) -> list[Arrays]:
        """Return this stage's tensors by active layer, under their names in the layer."""
        return [
            {name: views[f"{index}.{layer.kind}.{name}"] for name in layer.params}
            for index, layer in self.active[self.own]
        ]

    def _current(self) -> list[Arrays]:
        return self.params_of_layers[self.version % len(self.params_of_layers)]

    def _follow(self) -> None:
        """Point the layers to the parameters of the arena's current version."""
        if self.version != self.arena.version:
            self.version = self.arena.version
            if len(self.params_of_layers) > 1:
                for (_, layer), params in zip(self.active[self.own], self._current(), strict=True):
                    layer.use(params)

    @property
    def is_last(self) -> bool:
        """True if the output of the own layers is the logits."""
        return self.own.stop == len(self.active)

    def zeros(self) -> np.ndarray:
        """Return a sample of zeros, (1, ...), as the own layers take it."""
        return np.zeros((1, *self.shape_before(self.own.start)), self.dtype if self.own.start else "float32")

    def describe(self) -> list[str]:
        """Return a text per layer, and one of all tensors, that differ if the function does; before :meth:`bind`."""
        layers = [f"layer {n}: {layer.describe()}" for n, layer in enumerate(self.layers)]
        return [*layers, f"tensors: {self.whole.describe()}"]

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        """Return the output of the own layers for ``x`` (n, ...): logits (n, n_classes) for images (n, H, W, C).

        ``x`` and the output are kept until the backward pass; several batches have separate memory.
        """
        self._follow()
        if not state.adds:
            self.precision.refresh()
        x = self.precision.input(x, state)
        n, inputs = len(x), self._inputs.setdefault(state.first, [])
        inputs.clear()
        for begin in range(0, n if self.front else 0, self.part):
            end = min(begin + self.part, n)
            y = self._through(self.front, x[begin:end], state.part(begin, end), inputs)
            if end - begin < n:
                self.joined[state.first + begin : state.first + end] = y
        if self.front:
            x = y if self.part >= n else self.joined[state.first : state.first + n]
        y = self._through(self.rest, x, state, inputs)
        return self.precision.logits(y, state) if self.is_last else y

    def _through(self, layers: list[Layer], x: np.ndarray, state: Pass, inputs: list[list[np.ndarray]]) -> np.ndarray:
        inputs.append([])
        with self.precision.arithmetic():
            for layer in layers:
                inputs[-1].append(x)
                x = layer.forward(x, state)
        return x

    def gradients(self, x: np.ndarray, labels: Labels, state: Pass, hook: LayerHook | None = None) -> tuple[float, int]:
        """Run forward and backward: write the gradients of the summed loss to the arena.

        Parameters
        ----------
        x : ndarray, shape (n, H, W, C)
        labels : ndarray of int64, shape (n,), or Targets
        hook : LayerHook, optional

        Returns
        -------
        loss : float
            Summed over the n samples.
        n_correct : int
        """
        end, loss, n_correct = self.layout.size, 0.0, 0
        if len(x) == 0:
            self.arena.grads[:] = 0
        else:
            dy = self.dlogits[: len(x)]
            loss, n_correct = softmax_cross_entropy(self.forward(x, state), labels, dy)
            for number in self._through_back(dy, state):
                index = self.active[number][0]
                if hook and index in hook.layers and self.begins[index] < end:
                    hook.call(slice(self.begins[index], end))
                    end = self.begins[index]
        if hook and end:
            hook.call(slice(0, end))
        return loss, n_correct

    def backward(self, dy: np.ndarray, state: Pass) -> np.ndarray | None:
        """Write, or add, the gradients of the own layers; return that of their input, None in the first stage.

        ``state`` is that of the forward pass. The returned array is valid until the next backward pass.
        """
        for _ in self._through_back(dy, state):
            pass
        return self.dx

    def _through_back(self, dy: np.ndarray, state: Pass) -> Iterator[int]:
        """Go back through the layers; yield the position, in ``active``, of each one whose gradients are complete."""
        (*parts, of_rest), n_front, first, n = self._inputs[state.first], len(self.front), self.own.start, len(dy)
        for layer in self.keep_statistics:
            layer.note_statistics(n, state)
        dy = self.precision.gradient(dy) if self.is_last else dy
        for number in reversed(range(len(self.rest))):
            # the gradient of the images is not needed
            with self.precision.arithmetic():
                dy = self.rest[number].backward(of_rest[number], dy, state, first + n_front + number > 0)
            yield first + n_front + number
        self.dx = dy if first and not n_front else None
        for part, inputs in enumerate(parts):
            begin, end = part * self.part, min((part + 1) * self.part, n)
            of_part, of_state = dy[begin:end], state.part(begin, end)
            for number in reversed(range(n_front)):
                with self.precision.arithmetic():
                    of_part = self.front[number].backward(inputs[number], of_part, of_state, first + number > 0)
                if part == len(parts) - 1:
                    yield first + number
            if self.joined_dx is not None:
                self.joined_dx[begin:end] = of_part
                self.dx = self.joined_dx[:n]

    def evaluate(self, x: np.ndarray, labels: np.ndarray, also: Observer | None = None) -> tuple[float, int]:
        """Return the summed loss and the number of correctly classified samples; changes no gradient.

        ``also`` is called with the logits and the labels, unless there are no samples.
        """
        if len(x) == 0:
            return 0.0, 0
        logits = self.forward(x, Pass())
        loss, n_correct = softmax_cross_entropy(logits, labels, self.dlogits[: len(x)])
        if also:
            also(logits, labels)
        return loss, n_correct
