"""Layers in bfloat16: forward to the bit of the NumPy model, gradients near those of float64, the same on every CPU."""

from types import SimpleNamespace

import numpy as np
import pytest

from psframe.errors import UserError
from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena
from psframe.nn import precision, subnormal
from psframe.nn.activations import Dropout, Flatten, ReLU
from psframe.nn.base import BaseLayer, Pass
from psframe.nn.conv import Conv1d, Conv2d
from psframe.nn.conv.window import panel_rows
from psframe.nn.dense import Dense
from psframe.nn.network import Network
from psframe.nn.normalization import BatchNorm, GroupNorm, LayerNorm
from psframe.nn.pool import AvgPool2d, GlobalAvgPool, MaxPool2d
from psframe.nn.residual import Residual, Subsample
from psframe.nn.smooth import GELU, LeakyReLU, SiLU
from psframe.nn.subnormal import flushed
from psframe.nn.vectors import host
from tests.helpers import bfloat16_model as model
from tests.helpers import tiny
from tests.helpers.layers import Bench, half
from tests.helpers.other_cpu import has_avx2, said_on
from tests.helpers.thinned import thinned

pytestmark = pytest.mark.skipif(not subnormal.AVAILABLE or not host().fma, reason="bf16 needs an x86 CPU with AVX2")

#: bfloat16: zeros, subnormal numbers, the least and the largest normal ones, infinities, NaN, ones
SPECIAL = np.array([0, 0x8000, 1, 0x80, 0x8080, 0x7F7F, 0x7F80, 0xFF80, 0x7FC0, 0x3F80, 0xBF80, 0x2000], np.uint16)

CONVOLUTIONS = [
    (lambda: Conv2d(20, 5, padding=2), (9, 8, 1)),
    (lambda: Conv2d(6, 3, padding=1), (7, 6, 16)),
    (lambda: Conv2d(33, (2, 3), stride=(2, 1), padding=(1, 2)), (7, 9, 5)),
    (lambda: Conv1d(33, 3), (1, 30, 9)),
    (lambda: Conv2d(70, 3, padding=1), (3, 2, 300)),  # in chunks of window rows
]


def random(shape, special=False, seed=0):
    rng = np.random.default_rng(seed)
    x = half(rng.standard_normal(shape, dtype=np.float32))
    if special:
        x[...] = np.where(rng.random(shape) < 0.2, rng.choice(SPECIAL, shape), x)
    return x


def packed(even, odd):
    return even.astype(np.uint32) | odd.astype(np.uint32) << np.uint32(16)


def convolved(layer, x, weight, bias):
    """Return a convolution as it is defined: window row by row, pairs along its columns and channels in order, and
    sums of so many window rows as a cache holds."""
    (n, h, w, c), ((ph, pw), (sh, sw)) = x.shape, (layer.padding, layer.stride)
    out_h, out_w, out = layer.output_shape
    weight = weight.reshape(out, c, *((1,) * (4 - weight.ndim)), *weight.shape[2:])
    kh, kw = weight.shape[2:]
    image = np.zeros((n, h, w + 2 * pw, c), np.uint16)
    image[:, :, pw : pw + w] = x
    run, rows = kw * c, weight.transpose(2, 3, 1, 0).reshape(kh, kw * c, out)
    total, chunk = np.zeros((n, out_h, out_w, out), np.float32), panel_rows.py_func(run, out)
    for first in range(0, kh, chunk):
        sums = np.tile(np.zeros(out, np.float32) if first else model.widened(bias), (n, out_h, out_w, 1))
        for i in range(first, min(kh, first + chunk)):
            for r in [r for r in range(out_h) if 0 <= r * sh - ph + i < h]:
                line = image[:, r * sh - ph + i].reshape(n, -1)
                runs = np.stack([line[:, j * sw * c : j * sw * c + run] for j in range(out_w)], 1)
                sums[:, r] = summed(sums[:, r], runs, rows[i])
        total = total + sums if first else sums
    return model.rounded(total).reshape(total.shape)


def summed(sums, runs, rows):
    """Add to ``sums`` (n, columns, out) the products of ``runs`` (n, columns, run) and ``rows`` (run, out)."""
    run = len(rows)
    for k in range(0, run, 2):
        odd = runs[..., k + 1] if k + 1 < run else np.zeros(runs.shape[:2], np.uint16)
        row = packed(rows[k], rows[k + 1] if k + 1 < run else np.zeros(rows.shape[1], np.uint16))
        sums = model.dot(sums, *np.broadcast_arrays(packed(runs[..., k], odd)[..., None], row))
    return sums


def same(got, wanted):
    return (got == wanted) | (np.isnan(model.widened(got)) & np.isnan(model.widened(wanted)))


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(("make", "shape"), thinned(CONVOLUTIONS, (0,)))
def test_convolutions_have_the_bits_of_their_definition(make, shape, special):
    layer, n = make(), 3
    bench = Bench([layer], shape, n, "uint16")
    x = random((n, *shape), special)
    with flushed():
        y = bench.forward(x).copy()
    assert same(y, convolved(layer, x, *bench.params)).all()


@pytest.mark.full
@pytest.mark.parametrize(("features", "out"), [(71, 50), (33, 7), (600, 20)])
def test_dense_layers_have_the_bits_of_their_definition(features, out):
    bench = Bench([Dense(out)], (features,), 6, "uint16")
    x = random((5, features))
    with flushed():
        y = bench.forward(x).copy()
    weight, bias = bench.params
    total = np.zeros((5, out), np.float32)
    for begin in range(0, features, 256):
        sums, end = np.zeros((5, out), np.float32), min(begin + 256, features)
        for k in range(begin, end, 2):
            has_odd = k + 1 < end
            row = packed(weight[:, k], weight[:, k + 1] if has_odd else np.zeros(out, np.uint16))
            pairs = packed(x[:, k], x[:, k + 1] if has_odd else np.zeros(5, np.uint16))
            sums = model.dot(sums, *np.broadcast_arrays(pairs[:, None], row[None]))
        total = (total if begin else np.broadcast_to(model.widened(bias), total.shape)) + sums
    np.testing.assert_array_equal(y, model.rounded(total).reshape(y.shape))


def of_all_kinds():
    return [
        (lambda: Conv2d(20, 5, padding=2), (9, 8, 3)),
        (lambda: Conv2d(16, 3), (9, 8, 16)),
        (lambda: Conv2d(7, 3, stride=2), (9, 8, 5)),
        (lambda: Conv1d(33, 3), (1, 30, 9)),
        (lambda: Dense(50), (71,)),
        (lambda: MaxPool2d(3, 2, ceil_mode=True), (9, 8, 20)),
        (lambda: AvgPool2d(2), (9, 8, 20)),
        (ReLU, (9, 8, 5)),
        (Flatten, (4, 3, 5)),
        (BatchNorm, (9, 8, 21)),
        (lambda: GroupNorm(3), (9, 8, 21)),
        (LayerNorm, (40,)),
        (GELU, (9, 8, 5)),
        (SiLU, (9, 8, 5)),
        (LeakyReLU, (9, 8, 5)),
        (lambda: Conv2d(21, 3, padding=1, groups=21, stride=2), (9, 8, 21)),
        (lambda: Conv2d(8, 3, padding=2, dilation=2, groups=2), (9, 8, 6)),
        (lambda: Residual([Conv2d(24, 1)], [Subsample(24)]), (9, 8, 21)),
        (GlobalAvgPool, (9, 8, 21)),
        (lambda: SummingUp([BatchNorm()]), (9, 8, 21)),
    ]


class SummingUp(Residual):
    """A shortcut whose body ends in a normalization, which adds what goes around, and a ReLU."""

    def setup(self, input_shape, index):
        shape = super().setup(input_shape, index)
        assert self.absorb(ReLU())
        return shape


@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize(("make", "shape"), thinned(of_all_kinds(), (7, 9)))
def test_gradients_are_near_those_of_float64(make, shape, n):
    found = []
    for dtype in ("uint16", "float64"):
        bench = Bench([make()], shape, n + 1, dtype, "direct" if dtype == "uint16" else "blas")
        wide = dtype == "float64"
        if wide:  # of the same numbers
            for mine, theirs in zip(bench.params, found[0][0], strict=True):
                mine[...] = theirs
        x = random((n, *shape))
        given = model.widened(x).astype(np.float64) if wide else x
        y = bench.forward(given, Pass(train=True)).copy()
        dy = random(y.shape, seed=1)
        dx = bench.backward(model.widened(dy).astype(np.float64) if wide else dy)
        numbers = [y, dx, *bench.grads]
        found.append(([*map(in_float, bench.params)], [*map(in_float, numbers)]))
    for got, wanted in zip(found[0][1], found[1][1], strict=True):
        assert got.shape == wanted.shape
        assert np.linalg.norm(got - wanted) <= 2.0**-8 * np.linalg.norm(wanted)


def in_float(x):
    return (model.widened(np.ascontiguousarray(x)) if x.dtype == np.uint16 else x).astype(np.float64)


def test_dropout_scales_and_rounds():
    layer = Dropout(0.3)
    bench = Bench([layer], (5, 6), 4, "uint16")
    x = random((4, 5, 6))
    state = Pass(True, 1, 2, np.arange(4))
    y = bench.forward(x, state)
    kept = y & 0x7FFF != 0
    assert 0.4 < kept.mean() < 0.95
    scaled = model.rounded(model.widened(x) * (np.float32(1) / (np.float32(1) - np.float32(0.3)))).reshape(x.shape)
    np.testing.assert_array_equal(y[kept], scaled[kept])


@pytest.mark.full
@has_avx2
@pytest.mark.parametrize("part", ["bf16", "normalized"])
def test_layers_have_the_same_bits_on_every_cpu(part):
    cpus = ["haswell", None, *(["skylake-avx512"] if host().n_bytes == 64 else [])]  # without the instruction
    cpus += ["znver4"] if host().bf16 else []  # and with it
    assert len({said_on(cpu, "tests.helpers.layer_digest", part)[1] for cpu in cpus}) == 1


def test_layers_that_do_not_compute_in_it_are_told():
    with pytest.raises(UserError, match="layer 1, Doubled, which does not"):
        Network(tiny.mixed((1, 4, 4), 3), (1, 4, 4), 3, precision="bf16")
    with pytest.raises(UserError, match="layer 1, Residual, which does not"):
        Network([Flatten(), Residual([tiny.Doubled()]), Dense(3)], (1, 4, 4), 3, precision="bf16")
    Network(tiny.mixed((1, 4, 4), 3), (1, 4, 4), 3)


def test_output_of_a_batch_in_parts_is_that_of_each_part():
    """Also where the last layer makes sums, in float32."""
    layers = [Conv2d(64, 3), ReLU(), Conv2d(10, 1), GlobalAvgPool(), LayerNorm()]
    net, allocator = Network(layers, (1, 28, 28), 10, precision="bf16"), Allocator()
    net.bind(Arena(net.layout, 0, allocator), 64, allocator)
    x = np.random.default_rng(0).standard_normal((64, *net.input_shape)).astype(np.float32)
    assert net.sections[-1].part < 64
    whole = net.forward(x, Pass()).copy()
    for begin in range(0, 64, 16):
        np.testing.assert_array_equal(whole[begin : begin + 16], net.forward(x[begin : begin + 16], Pass()))


class Probe(BaseLayer):
    """Notes how its thread treats subnormal numbers."""

    bfloat16 = "arrays"

    def setup(self, input_shape, index):
        self.seen = set()
        return input_shape

    def forward(self, x, state):
        self.seen.add(subnormal.mode())
        return x

    def backward(self, x, dy, state, need_dx):
        self.seen.add(subnormal.mode())
        return dy


@pytest.mark.full
def test_subnormal_numbers_are_zeros_within_shortcuts_whose_samples_meet():
    probes = Probe(), Probe(), Probe()
    layers = [Residual([probes[0], BatchNorm()]), Residual([probes[1], Conv2d(3, 1)]), Flatten(), probes[2], Dense(2)]
    net = Network(layers, (3, 4, 4), 2, precision="bf16")
    allocator = Allocator()
    net.bind(Arena(net.layout, 0, allocator), 4, allocator)
    net.gradients(np.ones((4, *net.input_shape), np.float32), np.zeros(4, np.int64), Pass(True, samples=np.arange(4)))
    assert subnormal.mode() == 0
    with flushed():
        assert [probe.seen for probe in probes] == [{subnormal.mode()}] * 3


def test_cpus_that_cannot_are_told(monkeypatch):
    monkeypatch.setattr(subnormal, "AVAILABLE", False)
    with pytest.raises(UserError, match="must have a CPU with fused multiply-adds"):
        precision.BFloat16(SimpleNamespace(params=np.empty(0)), lambda shape, dtype: np.empty(shape, dtype))
