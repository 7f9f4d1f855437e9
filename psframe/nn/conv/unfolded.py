"""Convolution of small images with large weights (:class:`Unfolded`), as a dense layer over windows of some samples.

:class:`psframe.nn.conv.direct.Direct` reads the weights for every sample. With few pixels in a sample that takes longer
than the products (im2col after Chellapilla, Puri and Simard 2006).
"""

import numpy as np

from psframe.nn.base import Arrays, Pass
from psframe.nn.conv.geometry import Geometry
from psframe.nn.conv.window import PANEL
from psframe.nn.dense.kernels import Direct as Dense
from psframe.nn.jit import jit
from psframe.nn.parts import share
from psframe.nn.workspace import Workspace

ROWS = 256  # windows of a product, at most: with their gradients they stay in a cache


def pays(geometry: Geometry, n_weights: int) -> bool:
    """Return True if the weights are more panels of the L2 cache than an output has pixels."""
    out_h, out_w, _ = geometry.output
    return n_weights >= PANEL * out_h * out_w


class Unfolded:
    """Convolution and its gradients from copies of windows; arguments as for ``conv.direct.Direct``."""

    def __init__(self, geometry: Geometry, p: Arrays, g: Arrays, relu: bool, workspace: Workspace):
        (*_, c), (out_h, out_w, _), (kh, kw), *self.places = geometry
        self.threads, self.pixels, self.n_numbers = workspace.threads, out_h * out_w, kh * kw * c
        self.samples = max(1, min(workspace.max_batch, ROWS // self.pixels))
        self.shape = (out_h, out_w, kh, kw, c)
        rows = workspace.branch("windows")
        rows.max_batch = self.samples * self.pixels
        self.columns, self.d_columns = rows.batch((self.n_numbers,)), rows.batch((self.n_numbers,))
        self.dense = Dense(self._as_dense(p), self._as_dense(g), relu, rows)

    def _as_dense(self, arrays: Arrays) -> Arrays:
        return {"weight": arrays["weight"].reshape(self.n_numbers, -1), "bias": arrays["bias"]}

    def use(self, p: Arrays) -> None:
        self.dense.use(self._as_dense(p))

    def _windows(self, columns: np.ndarray, n: int) -> np.ndarray:
        """Return the buffer for windows of ``n`` samples, by pixel and place in the window."""
        return columns[: n * self.pixels].reshape(n, *self.shape)

    def _unfolded(self, x: np.ndarray) -> np.ndarray:
        """Return the windows of some samples as rows."""
        self.threads.run(unfold, x, *self.places[:2], self._windows(self.columns, len(x)))
        return self.columns[: len(x) * self.pixels]

    def forward(self, x: np.ndarray, y: np.ndarray, state: Pass) -> None:
        """Write the output to ``y``."""
        for begin in range(0, len(x), self.samples):
            part = slice(begin, begin + self.samples)
            self.dense.forward(self._unfolded(x[part]), y[part].reshape(-1, y.shape[3]))

    def backward(
        self, x: np.ndarray, y: np.ndarray, dy: np.ndarray, dx: np.ndarray, need_dx: bool, state: Pass
    ) -> None:
        """Write the gradients; with ``state.adds``, add those of the parameters."""
        for begin in range(0, len(x), self.samples):
            part = slice(begin, begin + self.samples)
            rows, of_rows = (a[part].reshape(-1, a.shape[3]) for a in (y, dy))
            columns, d_columns = self._unfolded(x[part]), self.d_columns[: len(rows)]
            self.dense.backward(columns, rows, of_rows, d_columns, need_dx, state.adds or begin > 0)
            if need_dx:
                windows = self._windows(d_columns, len(x[part]))
                self.threads.run(fold, windows, *self.places[:2], dx[part])


@jit
def unfold(part, n_parts, x, stride, padding, windows):
    """Copy the windows of ``x`` (n, H, W, C), with zeros outside, to ``windows`` (n, H', W', rows, columns, C)."""
    _, h, w, _ = x.shape
    _, out_h, out_w, kh, kw, _ = windows.shape
    for s in share(len(x), part, n_parts):
        for i in range(out_h):
            for j in range(out_w):
                for a in range(kh):
                    for b in range(kw):
                        row, column = i * stride[0] + a - padding[0], j * stride[1] + b - padding[1]
                        if 0 <= row < h and 0 <= column < w:
                            windows[s, i, j, a, b] = x[s, row, column]
                        else:
                            windows[s, i, j, a, b] = 0


@jit
def fold(part, n_parts, windows, stride, padding, dx):
    """Write to each pixel of ``dx`` (n, H, W, C) the sum of its places in ``windows``, in their order."""
    _, h, w, c = dx.shape
    _, out_h, out_w, kh, kw, _ = windows.shape
    for s in share(len(dx), part, n_parts):
        dx[s] = 0
        for i in range(out_h):
            for j in range(out_w):
                for a in range(kh):
                    for b in range(kw):
                        row, column = i * stride[0] + a - padding[0], j * stride[1] + b - padding[1]
                        if 0 <= row < h and 0 <= column < w:
                            given, to = windows[s, i, j, a, b], dx[s, row, column]
                            for channel in range(c):
                                to[channel] += given[channel]
