"""Convolution by the microkernel (:class:`Direct`): blockings, bands and buffers, chosen before the first batch."""

import numpy as np

from psframe.nn.base import Arrays, Pass
from psframe.nn.blocking import blocking
from psframe.nn.conv import loops
from psframe.nn.conv.geometry import Geometry
from psframe.nn.conv.window import Window, panel_rows
from psframe.nn.workspace import Workspace

MOST_TOGETHER = 128  # columns of a product whose rows are added where they overlap
CACHE_BYTES = 512 << 10  # of the L2 cache: half of it on most CPUs, a core's share on Knights Landing


class Direct:
    """Convolution and its gradients on the images in place (see :mod:`psframe.nn.conv.loops`).

    Parameters
    ----------
    geometry : Geometry
    p, g : dict of str to ndarray
        ``weight`` (kernel height, kernel width, C, out) and ``bias`` (out,), and their gradients.
    relu : bool
        True if a ReLU follows.
    """

    def __init__(self, geometry: Geometry, p: Arrays, g: Arrays, relu: bool, workspace: Workspace):
        (h, w, c), (out_h, out_w, out), (kh, kw), (sh, sw), (ph, pw), _ = geometry
        self.threads, self.relu = workspace.threads, relu
        self.use(p)
        self.weight_gradient, self.bias_gradient = g["weight"].reshape(-1), g["bias"]
        itemsize = self.weight_gradient.itemsize
        in_one = workspace.in_one
        self.types = blocking(out_w, out, itemsize, in_one=in_one).types
        together = kw * c if kw * c <= MOST_TOGETHER else c
        # windows that overlap are added up from left to right, which several blocks would do one after the other
        data = blocking(out_w, together, itemsize, undivided=together > c, in_one=in_one)
        weight, bias = blocking(kw * c, out, itemsize, in_one=in_one), blocking(1, out, itemsize)
        self.gradient_types = (data.types, weight.types, bias.types)
        # a staged row of the image, and a row of the output
        pitch = max((out_w - 1) * sw + kw, w + pw) * c
        in_bytes, out_bytes = pitch * itemsize, out_w * out * itemsize
        band = min(out_h, max(1, (CACHE_BYTES // in_bytes - kh) // sh + 1))
        data_band = min(h, max(1, CACHE_BYTES // in_bytes))
        weight_band = min(band, max(1, (CACHE_BYTES - kh * in_bytes) // (sh * in_bytes + out_bytes)))
        # whole samples together, if several fit
        image = (out_h - 1) * sh + kh
        samples = max(1, CACHE_BYTES // (image * in_bytes + out_h * out_bytes)) if weight_band == out_h else 1
        samples = -(-samples // in_one) * in_one
        self.window = Window(kh, kw, sh, sw, ph, pw, band)
        self.windows = (
            self.window._replace(band=data_band, together=together),
            self.window._replace(band=weight_band, samples=samples),
        )
        room = band * out_w * out if panel_rows.py_func(kw * c, out) < kh else 0
        self.room = workspace.array((workspace.threads.n, room), workspace.sums) if room else None
        n_images, n_sums = ((band - 1) * sh + kh) * pitch, data_band * pitch
        n_staged, n_outputs = ((weight_band - 1) * sh + kh) * pitch * samples, weight_band * out_w * out * samples
        self.images, self.rooms = _staging(workspace, n_images, n_staged if pw or in_one > 1 else 0, n_outputs, n_sums)
        self.wide = workspace.array((workspace.threads.n, out if in_one > 1 else 0), workspace.sums)
        self.zeros = workspace.array(out, workspace.sums)
        self.zeros[:] = 0
        run = -(-kw * c // in_one)
        self.packed = workspace.array(kh * run * out, workspace.elements)
        self.packed_gradient = workspace.array(kh * kw * c * -(-out // in_one), workspace.elements)
        self.one = workspace.one()

    def use(self, p: Arrays) -> None:
        self.weight, self.bias = p["weight"].reshape(-1), p["bias"]

    def forward(self, x: np.ndarray, y: np.ndarray, state: Pass) -> None:
        """Write the output to ``y``. The first pass of a step packs the weights for all of its passes."""
        self.threads.run_phases(
            2, loops.forward, self.types, x, self.weight, self.packed, self.bias, self.wide, self.zeros, y,
            not state.adds, self.relu, self.window, self.images, self.room,
        )  # fmt: skip

    def backward(
        self, x: np.ndarray, y: np.ndarray, dy: np.ndarray, dx: np.ndarray, need_dx: bool, state: Pass
    ) -> None:
        """Write the gradients; with ``state.adds``, add those of the parameters."""
        self.threads.run_phases(
            2, loops.backward, self.gradient_types, x, y, dy, self.weight, self.packed_gradient,
            self.weight_gradient, self.bias_gradient, self.one, dx, self.relu, need_dx, state.adds, self.windows,
            self.rooms,
        )  # fmt: skip


def _staging(
    workspace: Workspace, n_images: int, n_staged: int, n_outputs: int, n_sums: int
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return buffers of each thread for a band of images, and of backward: images, outputs, sums of the gradient.

    Numbers are not paired, and one buffer serves for all; outputs are then read in place.
    """
    n, in_one = workspace.threads.n, workspace.in_one
    if in_one == 1:
        images = workspace.array((n, max(n_images, n_staged, n_sums)))
        return images, (images, workspace.array((n, 0)), images)
    staged, outputs = (workspace.array((n, size // in_one), workspace.elements) for size in (n_staged, n_outputs))
    return workspace.array((n, n_images)), (staged, outputs, workspace.array((n, n_sums), workspace.sums))
