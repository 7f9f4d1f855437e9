"""Base class of the normalization layers (:class:`Normalization`)."""

from collections.abc import Callable
from math import inf, prod
from typing import Any

import numpy as np

from psframe.nn.activations import BeforeReLU
from psframe.nn.base import Arrays, Param, Pass, Shape
from psframe.nn.blocking import side_by_side
from psframe.nn.checks import number
from psframe.nn.normalization import loops
from psframe.nn.reads import Reads
from psframe.nn.steps import Meeting, Stepping, Steps
from psframe.nn.workspace import Workspace


class Normalization(Stepping, BeforeReLU):
    """y = (x - mean) / sqrt(variance + eps) * weight + bias, by channel; input and output (n, ..., C).

    Members say over what mean and variance are taken. A following ReLU is absorbed.
    """

    flops = 0.0
    #: True if all samples share mean and variance
    shared: bool
    #: False if it writes to an array that it is given: the output of a sum
    has_output = True

    def __init__(self, *, eps: float = 1e-5):
        name = f"eps of {type(self).__name__}"
        self.eps = number(name, eps, "be a finite number greater than 0", lambda value: 0 < value < inf)

    @property
    def reads(self) -> Reads:  # type: ignore[override]
        return Reads(2, 2, int(self.held is not None))  # once for the sums, and once for what follows from them

    def setup(self, input_shape: Shape, index: int) -> Shape:
        self.shape, self.channels = input_shape, input_shape[-1]
        self.places = prod(input_shape) // self.channels
        self.params = {"weight": Param((self.channels,), (0,)), "bias": Param((self.channels,), (0,))}
        return input_shape

    def initial(self, seed: int) -> Arrays:
        return {"weight": np.ones(self.channels, np.float32)}

    def bind(self, params: Arrays, grads: Arrays, workspace: Workspace) -> None:
        super().bind(params, grads, workspace)
        self.own_grads = grads
        n, self.max_batch = workspace.max_batch, workspace.max_batch
        n_kept, kept = workspace.n_kept, workspace.n_kept * n
        self.y: Any = workspace.output(self.shape) if self.has_output else None
        self.types = side_by_side(self.channels, np.dtype(workspace.sums).itemsize).types
        self.floor = 0.0 if self.relu else -np.inf
        self.moments, self.sums = (
            workspace.array((kept, 2, self.channels), dtype) for dtype in ("float64", workspace.sums)
        )
        # of each batch that waits for its backward pass, or of each of its samples
        n_sets = n_kept if self.shared else kept
        #: mean, variance and 1 / sqrt(variance + eps); mean, scale and shift as the loops take them
        self.found = workspace.array((n_sets, 3, self.channels), "float64")
        self.by_channel = workspace.array((n_sets, 3, self.channels), workspace.sums)
        self.of_means = workspace.array((n_sets, 2, self.channels), workspace.sums)
        #: samples of the batches that wait, by their places
        self.n_of = np.zeros(n_kept, np.int64)
        self.held = workspace.held(self.shape) if self.meets and workspace.in_step else None

    def _place(self, state: Pass) -> int:
        """Return the place of a pass's batch among those that wait for their backward pass."""
        return state.first // self.max_batch

    def _rows(self, place: int) -> slice:
        """Return the rows of a batch's samples."""
        return slice(place * self.max_batch, place * self.max_batch + int(self.n_of[place]))

    def _sets(self, x: np.ndarray, state: Pass) -> slice:
        """Return the rows of ``found`` and ``by_channel`` for a pass."""
        if self.shared:
            return slice(self._place(state), self._place(state) + 1)
        return slice(state.first, state.first + len(x))

    def _run(self, loop: Callable[..., None], *args: Any) -> None:
        self.threads.run(loop, self.types, *args)

    def _observe(self, x: np.ndarray, state: Pass) -> None:
        """Write each sample's means and sums of squares to its rows of ``moments``."""
        own = slice(state.first, state.first + len(x))
        self._run(loops.sample_moments, x.reshape(len(x), -1), self.sums[own], self.moments[own])

    def forward_steps(
        self, x: np.ndarray, state: Pass, around: np.ndarray | None = None, y: np.ndarray | None = None
    ) -> Steps[np.ndarray]:
        """Return the output, plus ``around`` if given, with an absorbed ReLU behind the sum; it is in ``y``, if given.

        By default, it is in the layer's own array.
        """
        n, place = len(x), self._place(state)
        self.n_of[place] = state.first - place * self.max_batch + n
        if meeting := self._prepare(x, state):
            yield meeting
        by_channel = self.by_channel[self._sets(x, state)]
        y = self.y[state.first : state.first + n] if y is None else y
        around = None if around is None else around.reshape(n, -1)
        self._run(loops.normalize, x.reshape(n, -1), by_channel, around, self.floor, y.reshape(n, -1))
        return y

    def backward_steps(
        self,
        x: np.ndarray,
        dy: np.ndarray,
        state: Pass,
        need_dx: bool,
        y: np.ndarray | None = None,
        around: np.ndarray | None = None,
    ) -> Steps[np.ndarray | None]:
        """Write the gradients, and return the input's; with the output ``y`` of a sum, write that of ``around``."""
        n = len(x)
        if self.held and around is None:
            # other passes overwrite dy before the meeting
            y, around = self.y[state.first : state.first + n], self.held.rows(state.first, n)
        self._gradient_sums(x, dy, y, around, state)
        if meeting := self._gradients(x, state):
            yield meeting
        self._of_parameters(x, state)
        if state.done:
            state.done(self.own_grads)
        if not need_dx:
            return None
        g, floor = (dy, self.floor) if around is None else (around, -np.inf)
        by_channel, of_means = (rows[self._sets(x, state)] for rows in (self.by_channel, self.of_means))
        given = x.reshape(n, -1), g.reshape(n, -1), by_channel
        self._run(loops.input_gradient, *given, floor, of_means, dy.reshape(n, -1))
        return dy

    def _gradient_sums(self, x: np.ndarray, dy: np.ndarray, y: Any, around: Any, state: Pass) -> None:
        """Write each sample's sums of dy and of dy * (x - mean), 0 where a ReLU is off, to its rows of ``sums``."""
        n, by_channel = len(x), self.by_channel[self._sets(x, state)]
        given = x.reshape(n, -1), dy.reshape(n, -1), by_channel
        of_sum = (None, None) if around is None else (y.reshape(n, -1), around.reshape(n, -1))
        self._run(loops.gradient_sums, *given, self.floor, *of_sum, self.sums[state.first : state.first + n])

    def _prepare(self, x: np.ndarray, state: Pass) -> Meeting | None:
        """Write ``found`` and ``by_channel`` for a pass, or return a meeting that does so for all."""
        raise NotImplementedError

    def _gradients(self, x: np.ndarray, state: Pass) -> Meeting | None:
        """Write ``of_means`` for a pass from ``sums``, or return a meeting that does so for all."""
        raise NotImplementedError

    def _of_parameters(self, x: np.ndarray, state: Pass) -> None:
        """Write the gradients of weight and bias, once for all parts of a batch."""
        raise NotImplementedError
