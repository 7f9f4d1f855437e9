"""Convolution as one matrix product of NumPy's BLAS (:class:`Im2col`): the reference for the direct kernels.

im2col after Chellapilla, Puri, Simard 2006, "High performance convolutional neural networks for document processing".
"""

import numpy as np

from psframe.nn.base import Arrays, Pass
from psframe.nn.conv.geometry import Geometry
from psframe.nn.workspace import Workspace


class Im2col:
    """Convolution and its gradients from copies of all windows; arguments as for ``conv.direct.Direct``."""

    def __init__(self, geometry: Geometry, p: Arrays, g: Arrays, relu: bool, workspace: Workspace):
        (h, w, c), (out_h, out_w, out), (kh, kw), _, (ph, pw), _ = self.geometry = geometry
        self.relu, self.g = relu, g
        self.use(p)
        self.weight_gradient = g["weight"].reshape(-1, out)
        self.image = workspace.batch((h + 2 * ph, w + 2 * pw, c))
        self.columns = workspace.kept((out_h, out_w, kh, kw, c))
        self.product = workspace.array(self.weight.shape if workspace.adds else (0, 0))

    def use(self, p: Arrays) -> None:
        self.weight, self.bias = p["weight"].reshape(-1, p["weight"].shape[-1]), p["bias"]

    def forward(self, x: np.ndarray, y: np.ndarray, state: Pass) -> None:
        image, columns = self.image[: len(x)], self.columns[state.first : state.first + len(x)]
        image[:] = 0
        self._inside(image)[:] = x
        for a, b in np.ndindex(self.geometry.kernel):
            columns[:, :, :, a, b] = self._under(image, a, b)
        np.matmul(self._rows(columns), self.weight, out=y.reshape(-1, y.shape[3]))
        y += self.bias
        if self.relu:
            np.maximum(y, 0, out=y)

    def backward(
        self, x: np.ndarray, y: np.ndarray, dy: np.ndarray, dx: np.ndarray, need_dx: bool, state: Pass
    ) -> None:
        if self.relu:
            dy[y <= 0] = 0
        image, columns = self.image[: len(dy)], self.columns[state.first : state.first + len(dy)]
        rows = dy.reshape(-1, dy.shape[3])
        # tens of thousands of rows: in float32 their rounding errors would exceed those of all matrix products
        of_bias = rows.sum(axis=0, dtype=np.float64)
        if state.adds:
            self.weight_gradient += np.matmul(self._rows(columns).T, rows, out=self.product)
            self.g["bias"] += of_bias
        else:
            np.matmul(self._rows(columns).T, rows, out=self.weight_gradient)
            self.g["bias"][:] = of_bias
        if need_dx:
            # the columns are no longer needed: their gradient overwrites them
            np.matmul(rows, self.weight.T, out=self._rows(columns))
            image[:] = 0
            for a, b in np.ndindex(self.geometry.kernel):
                self._under(image, a, b)[...] += columns[:, :, :, a, b]
            dx[:] = self._inside(image)

    def _rows(self, columns: np.ndarray) -> np.ndarray:
        return columns.reshape(-1, len(self.weight))

    def _inside(self, image: np.ndarray) -> np.ndarray:
        """Return the view of padded images without the padding, (n, H, W, C)."""
        (h, w, _), (ph, pw) = self.geometry.input, self.geometry.padding
        return image[:, ph : ph + h, pw : pw + w]

    def _under(self, image: np.ndarray, a: int, b: int) -> np.ndarray:
        """Return the view of the pixels at place (a, b) of every window, (n, H', W', C)."""
        (out_h, out_w, _), (sh, sw) = self.geometry.output, self.geometry.stride
        return image[:, a : a + (out_h - 1) * sh + 1 : sh, b : b + (out_w - 1) * sw + 1 : sw]
