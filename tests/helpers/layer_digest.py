"""Hold one pass through every kind of layer against BLAS: ``python -m tests.helpers.layer_digest [forward]``.

``forward`` leaves out the way back, whose code is compiled by itself. Prints the width of a vector and a hash of the
output. Numba's variables say for which CPU it is compiled.
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


def main(is_whole):
    results = []
    for kernels in ("direct", "blas"):
        layers = [Conv2d(21, 3, stride=2, padding=1), MaxPool2d(2), AvgPool2d(2), Flatten(), Dense(37), ReLU()]
        bench = Bench(layers, (17, 18, 3), 5, "float32", kernels)
        rng = np.random.default_rng(0)
        x, dy = rng.standard_normal((5, 17, 18, 3), dtype=np.float32), rng.standard_normal((5, 37), dtype=np.float32)
        y = bench.forward(x).copy()
        results.append([y, *([bench.backward(dy).copy(), *bench.grads] if is_whole else [])])
    for direct, blas in zip(*results, strict=True):
        np.testing.assert_allclose(direct, blas, rtol=1e-4, atol=1e-4 * np.abs(blas).max())
    print(host().n_bytes, hashlib.sha256(results[0][0].tobytes()).hexdigest())


if __name__ == "__main__":
    main(sys.argv[1:] != ["forward"])
