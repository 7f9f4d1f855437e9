"""Hold one pass through every kind of layer against BLAS: ``python -m tests.helpers.layer_digest [forward | conv]``.

``forward`` leaves out the way back, whose code is compiled by itself; ``conv`` is a convolution alone, there and back;
``winograd`` does so by transformed tiles; ``bf16`` passes bfloat16 through every kind, there and back, and holds it
against BLAS roughly; ``normalized`` does so for normalization, shortcuts, and what else has loops of its own.
Prints the width of a vector and a hash of all results. Numba's variables say for which CPU it is compiled.
"""

import hashlib
import sys
from contextlib import nullcontext

import numpy as np

from psframe.nn.activations import Flatten, ReLU
from psframe.nn.base import Pass
from psframe.nn.conv import Conv2d
from psframe.nn.dense import Dense
from psframe.nn.normalization import BatchNorm, GroupNorm, LayerNorm
from psframe.nn.pool import AvgPool2d, GlobalAvgPool, MaxPool2d
from psframe.nn.residual import Residual, Subsample
from psframe.nn.smooth import SiLU
from psframe.nn.subnormal import flushed
from psframe.nn.vectors import host
from tests.helpers.bfloat16_model import widened
from tests.helpers.layers import Bench, half


def of_every_kind():
    return [Conv2d(21, 3, stride=2, padding=1), MaxPool2d(2), AvgPool2d(2), Flatten(), Dense(37), ReLU()], (17, 18, 3)


def conv():
    """Windows that overlap, over channels that fill several narrow vectors."""
    return [Conv2d(34, 3, padding=1)], (9, 11, 21)


def by_tiles():
    """So many channels that blocks of tiles have other sizes on other CPUs."""
    return [Conv2d(64, 3, padding=1), ReLU()], (9, 11, 64)


def normalized():
    around = Residual([Conv2d(21, 3, padding=1, groups=21, bias=False), BatchNorm()], [Subsample(21)])
    layers = [Conv2d(21, 3, groups=3), GroupNorm(3), SiLU(), around, ReLU(), GlobalAvgPool(), LayerNorm(), Dense(9)]
    return layers, (9, 8, 6)


def main(part=""):
    results = []
    for kernels in ("winograd" if part == "winograd" else "direct", "blas"):
        layers, shape = {"conv": conv, "winograd": by_tiles, "normalized": normalized}.get(part, of_every_kind)()
        is_half = part in ("bf16", "normalized") and kernels == "direct"
        given = half if is_half else np.asarray
        bench = Bench(layers, shape, 5, "uint16" if is_half else "float32", kernels)
        rng = np.random.default_rng(0)
        with flushed() if is_half else nullcontext():
            x = given(rng.standard_normal((5, *shape), dtype=np.float32))
            y = bench.forward(x, Pass(train=True)).copy()
            dy = rng.standard_normal(y.shape, dtype=np.float32)
            results.append([y, *([] if part == "forward" else [bench.backward(given(dy)).copy(), *bench.grads])])
    for direct, blas in zip(*results, strict=True):
        if part in ("bf16", "normalized"):
            wide = widened(direct) if direct.dtype == np.uint16 else direct
            assert np.linalg.norm(wide - blas) < (0.05 if part == "bf16" else 0.2) * np.linalg.norm(blas)
        else:
            np.testing.assert_allclose(direct, blas, rtol=1e-4, atol=1e-4 * np.abs(blas).max())
    print(host().n_bytes, hashlib.sha256(b"".join(np.ascontiguousarray(x).tobytes() for x in results[0])).hexdigest())


if __name__ == "__main__":
    main(*sys.argv[1:])
