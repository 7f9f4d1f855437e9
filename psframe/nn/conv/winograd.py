"""Convolution of 3x3 with fewer products (:class:`Winograd`); its rounding errors are larger, and its bits others."""

import numpy as np

from psframe.nn.base import Arrays, Pass
from psframe.nn.blocking import blocking
from psframe.nn.conv import tile_gradients, tiles
from psframe.nn.conv.geometry import Geometry
from psframe.nn.conv.transforms import KERNEL, POINTS
from psframe.nn.transpose import tile
from psframe.nn.workspace import Workspace

BYTES = 256 << 10  # of transformed tiles and of products that a thread holds: they stay in its L2 cache
SUMS_BYTES = 2 << 20  # of a gradient's sums, that are read and written for each block of tiles
MOST_BLOCKS = 8  # of tiles, for each thread, that are transformed before any is multiplied
LEAST_TILES = 14  # multiplied at once, so that weights are read from memory no faster than they can be
CHANNELS = 32  # of input and output, at least: with fewer, transforms take longer than the products that they save
LINE = 16  # numbers, or more, of a cache's line
SIDE = 4  # of an output, at least: the direct form skips rows of a window that are outside of the image
PIXELS = 49  # of an output, at least: with fewer, transforms of the weights do


def pays(geometry: Geometry) -> bool:
    """Return True if the convolution takes less time so, at the batches of a worker: of 16 samples and more."""
    (*_, c), (out_h, out_w, out), kernel, stride, _, dilation = geometry
    is_square = (kernel, stride, dilation) == ((KERNEL, KERNEL), (1, 1), (1, 1))
    is_large = min(c, out) >= CHANNELS and out_h * out_w >= PIXELS and min(out_h, out_w) >= SIDE
    return is_square and is_large


class Winograd:
    """Convolution and its gradients by transformed tiles (see :mod:`psframe.nn.conv.transforms`).

    Arguments are those of :class:`psframe.nn.conv.direct.Direct`, for a geometry that :func:`pays`.
    """

    def __init__(self, geometry: Geometry, p: Arrays, g: Arrays, relu: bool, workspace: Workspace):
        inside, outside, _, _, (ph, pw), _ = geometry
        self.relu, self.threads, c, out = relu, workspace.threads, inside[2], outside[2]
        self.forward_tiles = _Tiles(inside, outside, (ph, pw), workspace)
        self.backward_tiles = _Tiles(outside, inside, (KERNEL - 1 - ph, KERNEL - 1 - pw), workspace)
        self.weight_gradient, self.bias_gradient = g["weight"].reshape(-1), g["bias"]
        itemsize = self.weight_gradient.itemsize
        self.types = blocking(c, out, itemsize).types, blocking(1, out, itemsize).types, *self.forward_tiles.types[1:3]
        self.turned, places = workspace.array(p["weight"].size), len(self.forward_tiles.packed)
        self.sums = workspace.array((places, _apart(c * out)))
        # blocks of tiles whose products are worth going through the sums, and waking threads
        n = self.threads.n
        worth = min(4, max(1, self.sums.nbytes // SUMS_BYTES)) if n == 1 else MOST_BLOCKS * n
        self.most = worth * self.forward_tiles.n_tiles
        self.transformed = tuple(workspace.array((places, _apart(self.most * size))) for size in (c, out))
        self.one, self.zeros = workspace.one(), workspace.array(max(c, out))
        self.zeros[:] = 0
        self.use(p)

    def use(self, p: Arrays) -> None:
        self.weight, self.bias = p["weight"].reshape(-1), p["bias"]

    def forward(self, x: np.ndarray, y: np.ndarray, state: Pass) -> None:
        """Write the output to ``y``. The first pass of a step transforms the weights for all of its passes."""
        self._convolve(self.forward_tiles, x, self.bias, y, not state.adds, False, self.relu)

    def backward(
        self, x: np.ndarray, y: np.ndarray, dy: np.ndarray, dx: np.ndarray, need_dx: bool, state: Pass
    ) -> None:
        """Write the gradients; with ``state.adds``, add those of the parameters."""
        form = self.forward_tiles
        n_blocks = -(-len(x) * form.n_of_sample // self.most)
        self.threads.run_phases(
            2 * n_blocks + 1 + self.relu, tile_gradients.weight_gradient, form.m, self.types, self.most, x, y, dy,
            self.weight_gradient, self.bias_gradient, self.one, self.zeros, self.sums, self.relu, state.adds,
            form.padding, *self.transformed, form.rooms[2],
        )  # fmt: skip
        if need_dx:
            self._convolve(self.backward_tiles, dy, self.zeros, dx, not state.adds, True, False)

    def _convolve(
        self, form: "_Tiles", x: np.ndarray, bias: np.ndarray, y: np.ndarray, packs: bool, turns: bool, relu: bool
    ) -> None:
        self.threads.run_phases(
            1 + packs + (packs and turns), tiles.convolve, form.m, form.types, form.n_tiles, x, self.weight,
            self.turned, form.packed, bias, y, packs, turns, relu, form.padding, form.rooms,
        )  # fmt: skip


class _Tiles:
    """Tiles of a convolution from (H, W, C) to (H', W', out): their size, blocking and buffers."""

    def __init__(
        self,
        inside: tuple[int, int, int],
        outside: tuple[int, int, int],
        padding: tuple[int, int],
        workspace: Workspace,
    ):
        (*_, c), (out_h, out_w, out), self.padding = inside, outside, padding
        counts = {m: -(-out_h // m) * -(-out_w // m) for m in POINTS}
        m = min(POINTS, key=lambda m: counts[m] * (m + 2) ** 2)
        places, itemsize, self.n_of_sample = (m + 2) ** 2, np.dtype(workspace.dtype).itemsize, counts[m]
        n_tiles = max(LEAST_TILES, BYTES // (places * (c + out) * itemsize))
        form = blocking(n_tiles, out, itemsize)
        self.n_tiles = -(-n_tiles // form.rows) * form.rows
        self.m, lanes = (None,) * m, (None,) * form.lanes
        self.types = (
            form.types,
            (lanes, (None,) * (c % form.lanes)),
            (None,) * (out % form.lanes),
            tile(form.lanes, out, c),
        )
        self.packed, n = workspace.array((places, _apart(c * out))), workspace.threads.n
        sizes = (
            (places, _apart(self.n_tiles * c)),
            (places, _apart(self.n_tiles * out)),
            (max(places * c, m * m * out),),
        )
        self.rooms = tuple(workspace.array((n, *size)) for size in sizes)


def _apart(n_numbers: int) -> int:
    """Return a length of rows, of so many numbers or a few more, that lie in different sets of a cache."""
    return -(-n_numbers // LINE) // 2 * 2 * LINE + LINE
