"""Products of a dense layer, by the microkernel (:class:`Direct`) and by NumPy's BLAS (:class:`Matmul`).

Arguments of both: ``weight`` (F, out) and ``bias`` (out,), their gradients, and ``relu``, True if a ReLU follows.
"""

import numpy as np

from psframe.nn.base import Arrays
from psframe.nn.blocking import blocking
from psframe.nn.dense import loops
from psframe.nn.workspace import Workspace

#: a batch of so many samples or more has the blocks of one of ``MANY``, so that one code serves them all
FEW, MANY = 8, 64
FEATURES = 96  # of a layer, whose blocks are for so many: 4, 6, 8, 12 and 24 divide it


class Direct:
    """Products by the microkernel; see :mod:`psframe.nn.dense.loops`."""

    def __init__(self, p: Arrays, g: Arrays, relu: bool, workspace: Workspace):
        (depth, out), n, itemsize = p["weight"].shape, workspace.max_batch, g["weight"].itemsize
        self.threads, self.relu, in_one = workspace.threads, relu, workspace.in_one
        self.use(p)
        self.weight_gradient, self.bias_gradient = g["weight"].reshape(-1), g["bias"]
        is_few, lanes = n < FEW, blocking(1, 1, itemsize).lanes
        n_rows = n if is_few else MANY
        blocks = blocking(n_rows, out, itemsize, power_of_two=not is_few, in_one=in_one)
        self.types = blocks.types
        # samples are columns of the input's gradient: in whole vectors, or if they are few in a part of one
        columns, width = (1 << (n - 1).bit_length(),) * 2 if is_few else (2 * lanes, -(-n // lanes) * lanes)
        # rows of W are often a power of two apart; an L1 cache has 8 or 12 ways for those
        rows = 1 << min(depth, MANY).bit_length() - 1
        data = blocking(rows, columns, itemsize, max_rows=8, undivided=True, power_of_two=True)
        self.gradient_types = (data.types, blocking(FEATURES, out, itemsize, in_one=in_one).types)
        n_threads, n_pairs = workspace.threads.n, -(-n // 2) if in_one == 2 else 0
        self.wide = workspace.array((n_threads, out if n_pairs else 0), workspace.sums)
        self.totals = workspace.array((n, out), workspace.sums) if n_pairs else None
        self.pairs = tuple(workspace.array((n_pairs, size), workspace.elements) for size in (depth, out))
        self.turned = workspace.array(-(-out // in_one) * width, workspace.elements)
        self.room = workspace.array((n_threads, data.rows, width))
        self.one, self.zeros = workspace.one(), workspace.array(out, workspace.sums)
        self.zeros[:] = 0

    def use(self, p: Arrays) -> None:
        self.weight, self.bias = p["weight"].reshape(-1), p["bias"]

    def forward(self, x: np.ndarray, y: np.ndarray) -> None:
        self.threads.run(
            loops.forward, self.types, x, self.weight, self.bias, self.wide, y, self.totals, self.one, self.relu
        )

    def backward(self, x: np.ndarray, y: np.ndarray, dy: np.ndarray, dx: np.ndarray, need_dx: bool, adds: bool) -> None:
        self.threads.run_phases(
            2, loops.backward, self.gradient_types, x, y, dy, self.weight, self.weight_gradient,
            self.bias_gradient, self.one, dx, *self.pairs, self.turned, self.room, self.zeros, self.relu,
            need_dx, adds,
        )  # fmt: skip


class Matmul:
    """Products by BLAS: the reference for :class:`Direct`."""

    def __init__(self, p: Arrays, g: Arrays, relu: bool, workspace: Workspace):
        self.g, self.relu = g, relu
        self.use(p)
        self.product = workspace.array(p["weight"].shape if workspace.adds else (0, 0))

    def use(self, p: Arrays) -> None:
        self.weight, self.bias = p["weight"], p["bias"]

    def forward(self, x: np.ndarray, y: np.ndarray) -> None:
        np.matmul(x, self.weight, out=y)
        y += self.bias
        if self.relu:
            np.maximum(y, 0, out=y)

    def backward(self, x: np.ndarray, y: np.ndarray, dy: np.ndarray, dx: np.ndarray, need_dx: bool, adds: bool) -> None:
        if self.relu:
            dy[y <= 0] = 0
        of_bias = dy.sum(axis=0, dtype=np.float64)
        if adds:
            self.g["weight"] += np.matmul(x.T, dy, out=self.product)
            self.g["bias"] += of_bias
        else:
            np.matmul(x.T, dy, out=self.g["weight"])
            self.g["bias"][:] = of_bias
        if need_dx:
            np.matmul(dy, self.weight.T, out=dx)
