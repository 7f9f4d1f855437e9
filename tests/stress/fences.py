"""Layers whose arrays lie between pages that nobody may touch: ``python -m tests.stress.fences above|below DTYPE``.

A sanitizer does not see what Numba has compiled. Here every array of a layer, its input and its gradients, ends with
its last cache line, or begins with its first, at a page without access: who goes beyond it ends by a signal. In
bfloat16 (uint16) arrays end with their last number: layers are cut for threads between any two.
"""

import ctypes
import mmap
import sys
from collections.abc import Sequence
from contextlib import nullcontext

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
from psframe.nn.subnormal import flushed
from tests.helpers.bfloat16_model import widened
from tests.helpers.layers import Bench, half

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
    """See :class:`tests.helpers.layers.Bench`; ``above`` says on which side of its arrays the fence is.

    ``to_the_number`` is True if arrays end with their last number, not its cache line.
    """

    above, to_the_number = True, False

    @staticmethod
    def empty(shape: Sequence[int], dtype: str) -> np.ndarray:
        return fenced(shape, dtype)


def fenced(shape: Sequence[int], dtype: str) -> np.ndarray:
    """Return an array between two pages without access, at the one above or the one below."""
    n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    inside = -(-max(n_bytes, 1) // PAGE) * PAGE
    memory = np.frombuffer(mmap.mmap(-1, inside + 2 * PAGE), np.uint8)
    for at in (0, PAGE + inside):
        if LIBC.mprotect(ctypes.c_void_p(memory.ctypes.data + at), ctypes.c_size_t(PAGE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
    used = n_bytes if Fenced.to_the_number else padded(n_bytes)
    begin = PAGE + inside - used if Fenced.above else PAGE
    return memory[begin : begin + n_bytes].view(dtype).reshape(shape)


def numbers(rng, shape: Sequence[int]) -> np.ndarray:
    """Return random numbers of the type of activations, between fences."""
    drawn = rng.standard_normal(shape, dtype=np.float32)
    drawn = half(drawn) if Fenced.to_the_number else drawn
    copy = fenced(shape, drawn.dtype.name)
    copy[...] = drawn
    return copy


def step(bench: Bench, input_shape: Sequence[int], n: int) -> list[np.ndarray]:
    """Return output and all gradients of a step."""
    rng = np.random.default_rng(0)
    y = bench.forward(numbers(rng, (n, *input_shape)), Pass(train=True, samples=np.arange(n)))
    dy = numbers(rng, y.shape)
    for layer in bench.layers:
        layer.note_statistics(n, bench.state)
    for layer, x in zip(reversed(bench.layers), reversed(bench.inputs), strict=True):
        dy = layer.backward(x, dy, bench.state, True)
    return [array.copy() for array in (y, dy, *bench.grads)]


def main(side: str, dtype: str, *chosen: str) -> None:
    """Do a step with each of ``CASES``, or with those whose numbers are ``chosen``."""
    Fenced.above, Fenced.to_the_number = side == "above", dtype == "uint16"
    cases = [CASES[int(number)] for number in chosen] or CASES
    with flushed() if Fenced.to_the_number else nullcontext():
        for layers, input_shape, n in cases:
            for kernels in ("direct",) if Fenced.to_the_number else ("direct", "blas"):
                for n_threads in (1, 3):
                    outcome = step(Fenced(layers, input_shape, n, dtype, kernels, n_threads), input_shape, n)
                    found = [widened(array) if array.dtype == np.uint16 else array for array in outcome]
                    assert all(np.isfinite(array).all() for array in found), (layers, kernels)
    print("nobody went too far")


if __name__ == "__main__":
    main(*sys.argv[1:])
