"""Grouped and dilated convolution (:class:`Gathered`): as dense ones of what is gathered for them.

A dilated window sees every d-th pixel. Outputs whose windows see the same ones make a *phase*: a dense convolution of
those pixels, and the phases of a sample are samples of it, one after the other: so the parts that a batch is cut into
change no sum. A group's channels are gathered likewise.
"""

from math import gcd
from typing import Any

import numpy as np

from psframe.nn.base import Arrays, Pass
from psframe.nn.conv.geometry import Geometry
from psframe.nn.workspace import Workspace


class _Axis:
    """Phases along one axis.

    Parameters
    ----------
    size, n : int
        Of the input and of the output.

    Attributes
    ----------
    n_phases, n_in, n_out, stride : int
        Of the dense convolution, whose phases are as long as the longest.
    """

    def __init__(self, size: int, n: int, kernel: int, stride: int, padding: int, dilation: int):
        shared = gcd(stride, dilation)
        self.n_phases, self.stride = min(n, dilation // shared), stride // shared
        self.apart, self.n_out = dilation // shared, -(-n // (dilation // shared))
        self.n_in = (self.n_out - 1) * self.stride + kernel
        self.begins = [phase * stride - padding for phase in range(self.n_phases)]
        self.size, self.n, self.dilation = size, n, dilation

    def inputs(self, phase: int) -> tuple[slice, slice]:
        """Return the pixels of a phase, and their places in the gathered ones."""
        begin, step = self.begins[phase], self.dilation
        skipped = max(0, -(begin // step))
        n = max(0, min(self.n_in, -(-(self.size - begin) // step)) - skipped)
        first = begin + skipped * step
        return slice(first, first + n * step, step) if n else slice(0, 0), slice(skipped, skipped + n)

    def outputs(self, phase: int) -> tuple[slice, slice]:
        """Return the outputs of a phase, and their places in its result."""
        return slice(phase, None, self.apart), slice(0, len(range(phase, self.n, self.apart)))


class Gathered:
    """Grouped or dilated convolution, and its gradients.

    Parameters
    ----------
    kind : type
        Of the dense convolutions.
    geometry : Geometry
    p, g : dict of str to ndarray
        ``weight`` (kernel height, kernel width, C / groups, out) and ``bias`` (out,), and their gradients.
    relu : bool
        True if a ReLU follows.
    groups : int
    """

    def __init__(
        self, kind: Any, geometry: Geometry, p: Arrays, g: Arrays, relu: bool, workspace: Workspace, groups: int
    ):
        (h, w, c), (out_h, out_w, out), kernel, stride, padding, dilation = geometry
        pairs = zip((h, w), (out_h, out_w), kernel, stride, padding, dilation, strict=True)
        self.rows, self.columns = rows, columns = [_Axis(*sizes) for sizes in pairs]
        self.phases = [(i, j) for i in range(rows.n_phases) for j in range(columns.n_phases)]
        self.groups, self.g, self.relu, self.shape = groups, g, relu, (*kernel, c // groups, out)
        inside, outside = (rows.n_in, columns.n_in, c // groups), (rows.n_out, columns.n_out, out // groups)
        dense = Geometry(inside, outside, kernel, (rows.stride, columns.stride), (0, 0))
        workspace = workspace.branch("windows")
        workspace.max_batch *= len(self.phases)
        self.x, self.dx = workspace.batch(inside), workspace.batch(inside)
        self.y, self.dy = workspace.batch(outside), workspace.batch(outside)
        self.own, self.own_gradients, self.kernels = [], [], []
        for _ in range(groups):
            own, gradients = (
                {
                    "weight": workspace.array((*kernel, c // groups, out // groups), dtype),
                    "bias": workspace.array(out // groups, dtype),
                }
                for dtype in (workspace.dtype, workspace.sums)
            )
            self.own.append(own)
            self.own_gradients.append(gradients)
            self.kernels.append(kind(dense, own, gradients, relu, workspace))
        self.use(p)

    def use(self, p: Arrays) -> None:
        self.p = p

    def _pass(self, state: Pass) -> Pass:
        """Return the arguments of a dense convolution, whose samples are the phases of those of ``state``."""
        return Pass(first=state.first * len(self.phases), adds=state.adds)

    def _channels(self, group: int, array: np.ndarray) -> slice:
        n = array.shape[-1] // self.groups
        return slice(group * n, (group + 1) * n)

    def _gather(self, given: np.ndarray, to: np.ndarray, group: int, places: str) -> np.ndarray:
        """Copy a group's channels of ``places``, inputs or outputs, of all phases; zeros where there is none."""
        channels, gathered = self._channels(group, given), self._by_sample(to, len(given))
        gathered[...] = 0
        for number, (i, j) in enumerate(self.phases):
            rows, row_places = getattr(self.rows, places)(i)
            columns, column_places = getattr(self.columns, places)(j)
            gathered[:, number, row_places, column_places] = given[:, rows, columns, channels]
        return to[: len(given) * len(self.phases)]

    def _by_sample(self, array: np.ndarray, n: int) -> np.ndarray:
        """Return the phases of ``n`` samples, (n, phases, ...)."""
        return array[: n * len(self.phases)].reshape(n, len(self.phases), *array.shape[1:])

    def forward(self, x: np.ndarray, y: np.ndarray, state: Pass) -> None:
        """Write the output to ``y``. The first pass of a step copies the weights for all of its passes."""
        n = len(x)
        for group, (kernels, own) in enumerate(zip(self.kernels, self.own, strict=True)):
            if not state.adds:
                weight, channels = self.p["weight"].reshape(self.shape), self._channels(group, y)
                own["weight"][...], own["bias"][...] = weight[..., channels], self.p["bias"][channels]
            gathered, result = self._gather(x, self.x, group, "inputs"), self.y[: n * len(self.phases)]
            kernels.forward(gathered, result, self._pass(state))
            by_sample = self._by_sample(result, n)
            for number, (i, j) in enumerate(self.phases):
                (rows, row_places), (columns, column_places) = self.rows.outputs(i), self.columns.outputs(j)
                of_phase = by_sample[:, number, row_places, column_places]
                y[:, rows, columns, self._channels(group, y)] = of_phase

    def backward(
        self, x: np.ndarray, y: np.ndarray, dy: np.ndarray, dx: np.ndarray, need_dx: bool, state: Pass
    ) -> None:
        """Write the gradients; with ``state.adds``, add those of the parameters."""
        n = len(x)
        if need_dx:
            dx[...] = 0
        for group, (kernels, gradients) in enumerate(zip(self.kernels, self.own_gradients, strict=True)):
            of_input, of_output = self.dx[: n * len(self.phases)], self._gather(dy, self.dy, group, "outputs")
            result = self._gather(y, self.y, group, "outputs") if self.relu else self.y[: len(of_input)]
            given = self._gather(x, self.x, group, "inputs")
            kernels.backward(given, result, of_output, of_input, need_dx, self._pass(state))
            channels = self._channels(group, dy)
            self.g["weight"].reshape(self.shape)[..., channels] = gradients["weight"]
            self.g["bias"][channels] = gradients["bias"]
            by_sample = self._by_sample(of_input, n)
            for number, (i, j) in enumerate(self.phases if need_dx else ()):
                (rows, row_places), (columns, column_places) = self.rows.inputs(i), self.columns.inputs(j)
                of_phase = by_sample[:, number, row_places, column_places]
                dx[:, rows, columns, self._channels(group, dx)] = of_phase  # phases have no pixel in common
