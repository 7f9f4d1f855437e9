"""Hold one pass through every kind of layer against BLAS: ``python -m tests.helpers.layer_digest [forward | conv]``.

``forward`` leaves out the way back, whose code is compiled by itself; ``conv`` is a convolution alone, there and back.
Prints the width of a vector and a hash of all results. Numba's variables say for which CPU it is compiled.
"""

import hashlib
import sys

import numpy as np

from psframe.nn.activations import Flatten, ReLU
from psframe.nn.conv import Conv2d
from psframe.nn.dense import Dense
from psframe.nn.pool import AvgPool2d, MaxPool2d
from psframe.nn.vectors import host
from tests.helpers.layers import Bench


def of_every_kind():
    return [Conv2d(21, 3, stride=2, padding=1), MaxPool2d(2), AvgPool2d(2), Flatten(), Dense(37), ReLU()], (17, 18, 3)


def conv():
    """Windows that overlap, over channels that fill several narrow vectors."""
    return [Conv2d(34, 3, padding=1)], (9, 11, 21)


def main(part=""):
    results = []
    for kernels in ("direct", "blas"):
        layers, shape = conv() if part == "conv" else of_every_kind()
        bench = Bench(layers, shape, 5, "float32", kernels)
        rng = np.random.default_rng(0)
        y = bench.forward(rng.standard_normal((5, *shape), dtype=np.float32)).copy()
        dy = rng.standard_normal(y.shape, dtype=np.float32)
        results.append([y, *([] if part == "forward" else [bench.backward(dy).copy(), *bench.grads])])
    for direct, blas in zip(*results, strict=True):
        np.testing.assert_allclose(direct, blas, rtol=1e-4, atol=1e-4 * np.abs(blas).max())
    print(host().n_bytes, hashlib.sha256(b"".join(np.ascontiguousarray(x).tobytes() for x in results[0])).hexdigest())


if __name__ == "__main__":
    main(*sys.argv[1:])
