"""Network of layers in sequence (:class:`Network`): tensors in an arena, buffers for the largest batch."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from psframe.errors import UserError
from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena, Layout
from psframe.nn import checks, steps
from psframe.nn.base import Arrays, Layer, LayerHook, Param, Pass, Shape, keeping_statistics, running, widest
from psframe.nn.losses import Labels, softmax_cross_entropy
from psframe.nn.precision import chosen
from psframe.nn.progress import BackwardProgress, Batch
from psframe.nn.reader import Reader
from psframe.nn.section import Section, front, part_of
from psframe.nn.steps import Steps
from psframe.nn.threads import Threads
from psframe.nn.workspace import Others, Workspace

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
        others: Others | None = None,
        infers: bool = False,
    ) -> None:
        """Give the layers their views of ``arena`` and memory for batches of up to ``max_batch`` samples.

        Up to ``n_kept`` batches may wait for their backward pass; with ``adds`` a step has several passes. Without
        ``others``, samples that meet those of all workers meet those of this rank. With ``infers`` no backward pass
        follows.
        """
        self.arena, self.max_batch, self.n_kept = arena, max_batch, n_kept
        self.precision = self._kind(arena, lambda shape, dtype: self._vector(allocator, shape, dtype))
        workspace = Workspace(
            max_batch,
            self.precision.dtype,
            lambda shape, dtype, tensor: allocator.zeros(shape, dtype, "activations", tensor),
            kernels,
            threads,
            lambda n_bytes: allocator.count("activations", n_bytes),
            n_kept,
            adds,
            self._kind.autocasts,
        )
        workspace.others, workspace.in_step = others, n_kept > 1 and self.meets == "workers"
        workspace.arithmetic = self.precision.arithmetic
        self.keep_statistics = keeping_statistics(self.active[self.own])
        self.reader = Reader(self.active[self.own], arena, self.precision.params())
        grads = self.reader.by_layer(arena.views(arena.grads))
        # without a backward pass no output is read again, and calls for each part take longer than a cache saves
        itemsize, n_threads = np.dtype(self.precision.dtype).itemsize, workspace.threads.n
        part = max_batch if infers else part_of(self.active, self.shapes, itemsize, max_batch, kernels, n_threads)
        middle = min(max(len(front(self.active)), self.own.start), self.own.stop)
        #: layers that a batch passes in parts, and those that it passes as one
        self.sections = [
            self._section(slice(begin, end), grads, size, workspace)
            for begin, end, size in ((self.own.start, middle, part), (middle, self.own.stop, max_batch))
            if begin < end
        ]
        n_logits = self.n_classes if self.is_last else 0
        self.dlogits = workspace.array((max_batch, n_logits), workspace.sums)
        self.precision.allocate_ends(workspace, None if self.own.start else self.input_shape, n_logits)

    def _vector(self, allocator: Allocator, shape: Shape, dtype: str) -> np.ndarray:
        """Return memory for a copy of the parameters."""
        vector = allocator.zeros(shape, dtype, "parameters")
        self.layout.name(allocator, vector)
        return vector

    def _section(self, own: slice, grads: list[Arrays], part: int, workspace: Workspace) -> Section:
        """Bind the layers at some positions in ``active``, for parts of a batch."""
        workspace.part = part
        workspace.take_turns(max(prod(self.shapes[index]) for index, _ in self.active[own]))
        inside = slice(own.start - self.own.start, own.stop - self.own.start)
        params = self.reader.current[inside]
        for number, (index, layer) in enumerate(self.active[own]):
            workspace.is_last = own.start + number == len(self.active) - 1
            workspace.layer = f"{index}.{layer.kind}"
            layer.bind(params[number], grads[inside][number], workspace)
        workspace.layer = ""
        return Section(self, own, grads[inside], part, workspace)

    @property
    def is_last(self) -> bool:
        """True if the output of the own layers is the logits."""
        return self.own.stop == len(self.active)

    @property
    def meets(self) -> str:
        """Samples that meet in the own layers, as of a layer."""
        return widest(layer for _, layer in self.active[self.own])

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
        return steps.finish(self._forward(x, state))

    def _forward(self, x: np.ndarray, state: Pass) -> Steps[np.ndarray]:
        self.reader.follow()
        if not state.adds:
            self.precision.refresh()
        x = self.precision.input(x, state)
        for section in self.sections:
            x = yield from section.forward(x, state)
        return self.precision.logits(x, state) if self.is_last else x

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
        return steps.finish(self._gradients(Batch(x, lambda: labels, state), hook))

    def gradients_in_step(self, batches: Sequence[Batch]) -> list[tuple[float, int]]:
        """Do the same for several batches, each up to where its samples meet those of the others.

        Each writes its gradients where the others do, layer by layer; ``state.done`` is to fetch them.
        """
        return steps.finish(steps.in_step([self._gradients(batch, None) for batch in batches]))

    def _gradients(self, batch: Batch, hook: LayerHook | None) -> Steps[tuple[float, int]]:
        n, state, progress = (
            len(batch.x),
            batch.state,
            BackwardProgress(self.active, self.begins, self.layout.size, hook),
        )
        if n:
            dy = self.dlogits[:n]
            logits = yield from self._forward(batch.x, state)
            loss, n_correct = softmax_cross_entropy(logits, batch.labels(), dy)
            yield from self._backward(dy, state, progress.layer)
        else:
            loss, n_correct = 0.0, 0
            if self.meets == "workers":
                yield from self._keep_company(state)
            if not state.done:
                self.arena.grads[:] = 0
        progress.finish()
        return loss, n_correct

    def _keep_company(self, state: Pass) -> Steps[None]:
        """Pass a sample that does not count, so that the others meet as many as they expect."""
        idle, dy = replace(state, idle=True, samples=np.zeros(1, np.int64)), self.dlogits[:1]
        yield from self._forward(self.zeros(), idle)
        dy[:] = 0
        yield from self._backward(dy, idle, lambda number: None)

    def backward(self, dy: np.ndarray, state: Pass) -> np.ndarray | None:
        """Write, or add, the gradients of the own layers; return that of their input, None in the first stage.

        ``state`` is that of the forward pass. The returned array is valid until the next backward pass.
        """
        steps.finish(self._backward(dy, state, lambda number: None))
        return self.dx

    def _backward(self, dy: np.ndarray, state: Pass, done: Callable[[int], None]) -> Steps[None]:
        """Go back through the layers; call ``done`` with the position, in ``active``, of each one that is complete."""
        for layer in self.keep_statistics:
            layer.note_statistics(len(dy), state)
        if state.done:
            state.done(None)
        dy = self.precision.gradient(dy) if self.is_last else dy
        for section in reversed(self.sections):
            dy = yield from section.backward(dy, state, done)
        self.dx = dy if self.own.start else None

    def evaluate(self, x: np.ndarray, labels: np.ndarray, also: Observer | None = None) -> tuple[float, int]:
        """Return the summed loss and the number of correctly classified samples; changes no gradient.

        ``also`` is called with the logits and the labels, unless there are no samples.
        """
        if len(x) == 0:
            return 0.0, 0
        logits = self.forward(x, Pass())
        loss, n_correct = softmax_cross_entropy(logits, labels, self.dlogits[:0])
        if also:
            also(logits, labels)
        return loss, n_correct
