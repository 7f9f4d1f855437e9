"""Hold dot products and rounding of bfloat16 against NumPy: ``python -m tests.helpers.bfloat16_digest``.

Prints whether the CPU that Numba compiles for has the instruction, and how many of the results differ, which are none.
"""

import numba
import numpy as np

from psframe.nn.lanes import pointer
from psframe.nn.microkernel import multiply_add
from psframe.nn.subnormal import flushed
from psframe.nn.vectors import host
from tests.helpers import bfloat16_model as model

U = np.uint32
#: zeros, subnormal numbers, the least normal ones, infinities, NaN, ones, the largest, and some whose products are tiny
SPECIAL = (0, 0x8000, 1, 0x7F, 0x80, 0x8080, 0x7F80, 0xFF80, 0x7FC0, 0x3F80, 0xBF80, 0x7F7F, 0x2000, 0x2040)


@numba.njit
def products(a, b, c):
    """Add to c[i] the product of the pairs a[i] and b[i], a block of four numbers and a tail of three in turn."""
    for i in range(len(c) // 7):
        for k in range(4):
            _one(((None,) * 4, (None,), (), (None,)), a, b, c, 7 * i + k)
        for k in range(4, 7):
            _one(((None,) * 16, (None,), (), (None,)), a, b, c, 7 * i + k)


@numba.njit
def _one(block, a, b, c, at):
    to = (pointer(c), at, 0)
    multiply_add(
        block, (pointer(a), at, 0, 0, 0), (pointer(b), at, 0, 0), to, (1, 1), (pointer(c), at), -np.inf, to, False
    )


@numba.njit
def round_(x, y):
    """Round x + 0 to bfloat16, in blocks of two vectors of four and a tail of three."""
    zeros = np.zeros(1, np.uint32)
    for i in range(0, len(x), 11):
        start = (pointer(x), i)
        to = (pointer(y), i, 0)
        multiply_add(
            ((None,) * 4, (None,), (None,) * 2, (None,) * 3), (pointer(zeros), 0, 0, 0, 0), (pointer(zeros), 0, 0, 0),
            to, (0, 0), start, -np.inf, to, False,
        )  # fmt: skip


def same(found, wanted):
    return (found.view(U) == wanted.view(U)) | (np.isnan(found) & np.isnan(wanted))


def main():
    rng, n, differ = np.random.default_rng(0), 7 << 14, 0
    for kind in ("any", "special", "tiny"):
        if kind == "special":
            a, b = (
                rng.choice(np.array(SPECIAL, U), n) | rng.choice(np.array(SPECIAL, U), n) << U(16) for _ in range(2)
            )
        elif kind == "tiny":  # products of about 2**-150, sums of about 2**-126
            a, b = (rng.integers(0x1A00, 0x1B00, n, U) | rng.integers(0x9A00, 0x9B00, n, U) << U(16) for _ in range(2))
        else:
            a, b = (rng.integers(0, 1 << 32, n, U) for _ in range(2))
        c = rng.integers(0, 1 << 32, n, U)
        c = (c & U(0x80000001) | U(0x00800000) if kind == "tiny" else c).view(np.float32)
        found = c.copy()
        with flushed():
            products(a, b, found)
        differ += int((~same(found, model.dot(c, a, b))).sum())
    x = np.concatenate([rng.integers(0, 1 << 32, 11 << 13, U), np.arange(0x7F7FFFF0, 0x7F7FFFF0 + 11, dtype=U)])
    x = np.concatenate([x, x[-11:] | U(0x80000000), np.arange(11, dtype=U) << U(20)]).view(np.float32)
    y = np.zeros(len(x), np.uint16)
    with flushed():
        round_(x, y)
    differ += int((y != model.rounded(x)).sum())
    print("instruction" if host().fast_bf16 else "emulated", differ)


if __name__ == "__main__":
    main()
