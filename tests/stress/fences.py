"""Layers whose arrays lie between pages that nobody may touch: ``python -m tests.stress.fences above|below``.

A sanitizer does not see what Numba has compiled. Here every array of a layer, its input and its gradients, ends with
its last cache line, or begins with its first, at a page without access: who goes beyond it ends by a signal.
"""

import ctypes
import mmap
import sys
from collections.abc import Sequence

import numpy as np

from psframe.memory.allocator import padded
from psframe.nn.activations import Dropout, Flatten, ReLU
from psframe.nn.base import Layer, Pass
from psframe.nn.conv import Conv1d, Conv2d
from psframe.nn.dense import Dense
from psframe.nn.normalization import BatchNorm, GroupNorm
from psframe.nn.pool import AvgPool2d, GlobalAvgPool, MaxPool2d
from psframe.nn.residual import Residual, Subsample
from psframe.nn.smooth import GELU, SiLU
from tests.helpers.layers import Bench

PAGE = mmap.PAGESIZE
LIBC = ctypes.CDLL(None, use_errno=True)

#: layers in a row, the shape of an input, and how many there are
CASES: list[tuple[Sequence[Layer], tuple[int, ...], int]] = [
    ([Conv2d(20, 5), MaxPool2d(2), ReLU(), Conv2d(50, 5), MaxPool2d(2), Flatten(), Dense(10)], (28, 28, 1), 3),
    ([Conv2d(17, 3, padding=1), ReLU(), AvgPool2d(3, stride=2)], (9, 7, 3), 2),
    ([Conv2d(33, (2, 5), stride=(2, 1), padding=(1, 2)), MaxPool2d(2, stride=2)], (8, 11, 16), 1),
    ([Conv2d(1, 1), Dropout(0.5), Flatten(), Dense(1)], (1, 1, 1), 1),
    ([Conv2d(33, 3, padding=1, stride=2, groups=33), BatchNorm(), ReLU(), GlobalAvgPool()], (5, 9, 33), 2),
    ([Conv2d(6, 3, padding=2, dilation=2, groups=2), GroupNorm(3), GELU(), Conv2d(5, 1)], (7, 6, 4), 2),
    ([Residual([Conv2d(5, 1), BatchNorm()]), ReLU(), Residual([SiLU()], [Subsample(5)])], (4, 3, 5), 3),
    ([Conv2d(257, 3)], (3, 3, 130), 3),
    ([Conv1d(10, 5, stride=2), ReLU(), Flatten(), Dense(6)], (1, 31, 9), 5),
    ([Dense(37), ReLU(), Dense(3)], (101,), 7),
]


class Fenced(Bench):
    """See :class:`tests.helpers.layers.Bench`; ``above`` says on which side of its arrays the fence is."""

    above = True

    def _tensor(self, param, values) -> np.ndarray:
        in_memory = fenced([param.shape[axis] for axis in param.order], self.dtype)
        logical = in_memory.transpose(np.argsort(param.order))
        logical[...] = values
        return logical

    @staticmethod
    def _junk(shape, dtype: str) -> np.ndarray:
        junk = fenced(shape, dtype)
        junk.fill(np.nan if junk.dtype.kind == "f" else 113)
        return junk


def fenced(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Return an array between two pages without access, at the one above or the one below."""
    n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    inside = -(-max(n_bytes, 1) // PAGE) * PAGE
    memory = np.frombuffer(mmap.mmap(-1, inside + 2 * PAGE), np.uint8)
    for at in (0, PAGE + inside):
        if LIBC.mprotect(ctypes.c_void_p(memory.ctypes.data + at), ctypes.c_size_t(PAGE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    begin = PAGE + inside - padded(n_bytes) if Fenced.above else PAGE
    return memory[begin : begin + n_bytes].view(dtype).reshape(shape)


def kept(array: np.ndarray) -> np.ndarray:
    copy = fenced(array.shape, str(array.dtype))
    copy[...] = array
    return copy


def step(bench: Bench, input_shape: Sequence[int], n: int) -> list[np.ndarray]:
    """Return output and all gradients of a step."""
    rng = np.random.default_rng(0)
    y = bench.forward(
        kept(rng.standard_normal((n, *input_shape), dtype=np.float32)), Pass(train=True, samples=np.arange(n))
    )
    dy = kept(rng.standard_normal(y.shape, dtype=np.float32))
    for layer in bench.layers:
        layer.note_statistics(n, bench.state)
    for layer, x in zip(reversed(bench.layers), reversed(bench.inputs), strict=True):
        dy = layer.backward(x, dy, bench.state, True)
    return [y.copy(), dy.copy(), *(grad.copy() for grad in bench.grads)]


def main(side: str) -> None:
    Fenced.above = side == "above"
    for layers, input_shape, n in CASES:
        for kernels in ("direct", "blas"):
            for n_threads in (1, 3):
                outcome = step(Fenced(layers, input_shape, n, "float32", kernels, n_threads), input_shape, n)
                assert all(np.isfinite(array).all() for array in outcome), (layers, kernels)
    print("nobody went too far")


if __name__ == "__main__":
    main(sys.argv[1])
