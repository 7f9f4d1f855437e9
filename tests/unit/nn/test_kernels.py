"""The fast kernels against the plain ones over shapes of every kind; that neither threads, nor the parts of a batch,
nor a ReLU that is absorbed change a bit; that a step allocates nothing."""

import tracemalloc
from itertools import pairwise, product

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframe.config.registry import load
from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena
from psframe.models import BUILT_IN
from psframe.nn import section
from psframe.nn.activations import Flatten, ReLU
from psframe.nn.base import LayerHook, Pass
from psframe.nn.conv import Conv1d, Conv2d
from psframe.nn.dense import Dense
from psframe.nn.initial import initialize
from psframe.nn.network import Network
from psframe.nn.normalization import GroupNorm, LayerNorm
from psframe.nn.pool import AvgPool2d, MaxPool2d
from psframe.nn.residual import Residual
from psframe.nn.smooth import GELU
from psframe.nn.threads import Threads
from tests.helpers.layers import Bench, half
from tests.helpers.nets import by_tiles, grouped, mixed
from tests.helpers.thinned import thinned


def results(layer, input_shape, n, kernels, n_threads=1, spare=1, dtype="float32"):
    """Return output and all gradients, as copies."""
    bench = Bench([layer], input_shape, n + spare, dtype, kernels, n_threads)
    rng = np.random.default_rng(0)
    given = half if dtype == "uint16" else np.asarray
    y = bench.forward(given(rng.standard_normal((n, *input_shape), dtype=np.float32))).copy()
    dy = given(rng.standard_normal(y.shape, dtype=np.float32))
    return [y, bench.backward(dy).copy(), *(grad.copy() for grad in bench.grads)]


def compare(make, input_shape, n):
    for got, want in zip(
        results(make(), input_shape, n, "direct"), results(make(), input_shape, n, "blas"), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * max(1, np.abs(want).max()))


CHANNELS = st.sampled_from([1, 2, 3, 6, 10, 16, 17, 20, 33, 50, 64])


@pytest.mark.full  # each shape is compiled, which takes seconds
@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    st.tuples(st.integers(1, 7), st.integers(1, 7)), st.tuples(st.integers(0, 20), st.integers(0, 20)),
    st.tuples(st.integers(1, 4), st.integers(1, 4)), st.tuples(st.integers(0, 4), st.integers(0, 4)),
    CHANNELS, CHANNELS, st.integers(1, 3),
)  # fmt: skip
def test_convolutions(kernel, extra, stride, padding, c_in, c_out, n):
    h, w = (max(1, k + e - 2 * p) for k, e, p in zip(kernel, extra, padding, strict=True))
    compare(lambda: Conv2d(c_out, kernel, stride=stride, padding=padding), (h, w, c_in), n)


@settings(max_examples=3, deadline=None, derandomize=True)
@given(st.integers(1, 600), st.integers(1, 90), st.integers(1, 40), st.integers(0, 20))
def test_dense(features, out, n, spare):
    direct, blas = (results(Dense(out), (features,), n, kernels, spare=spare) for kernels in ("direct", "blas"))
    for got, want in zip(direct, blas, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * max(1, np.abs(want).max()))


IMAGES = [
    ({"out_channels": 3, "kernel": 5, "padding": 2}, (40, 300, 20)),
    ({"out_channels": 3, "kernel": 3}, (40, 300, 20)),
    ({"out_channels": 2, "kernel": (3, 2), "stride": (2, 1), "padding": (1, 1)}, (6, 30_000, 5)),
]


@pytest.mark.full
@pytest.mark.parametrize(("how", "shape"), IMAGES)
def test_image_that_does_not_fit_into_a_cache(how, shape):
    """Bands of rows: with and without padding, of one row where a row is larger than all that may be staged."""
    compare(lambda: Conv2d(**how), shape, 1)


@pytest.mark.full
@pytest.mark.parametrize(
    ("how", "shape"),
    [({"out_channels": 700, "stride": (2, 1)}, (7, 6, 20)), ({"out_channels": 48}, (5, 6, 700))],
)
def test_weights_that_do_not_fit_into_a_cache(how, shape):
    """Some rows of the window at a time: of a block of columns, forward and in the input's gradient."""
    compare(lambda: Conv2d(kernel=3, padding=1, **how), shape, 2)


LAYERS = {
    "conv": (lambda: Conv2d(20, 5, padding=2), (9, 8, 3)),
    "conv-strided": (lambda: Conv2d(7, 3, stride=2), (9, 8, 5)),
    "conv1d": (lambda: Conv1d(33, 3), (1, 30, 9)),
    "dense": (lambda: Dense(50), (71,)),
    "max": (lambda: MaxPool2d(3, 2, ceil_mode=True), (9, 8, 20)),
    "avg": (lambda: AvgPool2d(2), (9, 8, 20)),
    "flatten": (Flatten, (4, 3, 5)),
    "depthwise": (lambda: Conv2d(21, 3, padding=1, groups=21), (9, 8, 21)),
    "groups": (lambda: Conv2d(6, 3, dilation=2, groups=3), (9, 8, 6)),
    "group norm": (lambda: GroupNorm(3), (9, 8, 21)),
    "residual": (lambda: Residual([Conv2d(20, 1)]), (9, 8, 20)),
}


@pytest.mark.parametrize("dtype", ["float32", "uint16"])
@pytest.mark.parametrize("case", thinned(LAYERS, (0, 4, 6, 7)))
def test_threads_change_no_bit(case, dtype):
    make, shape = LAYERS[case]
    alone = results(make(), shape, 5, "direct", dtype=dtype)
    for n_threads in (2, 3, 7):
        for one, many in zip(alone, results(make(), shape, 5, "direct", n_threads, dtype=dtype), strict=True):
            np.testing.assert_array_equal(one, many)


POOLS = [(kind, *shape) for kind in (MaxPool2d, AvgPool2d) for shape in (
    (2, 2, False), (3, 2, True), (3, 1, False), (2, 3, True), ((1, 3), (3, 2), True), (16, 1, False)
)]  # fmt: skip


@pytest.mark.parametrize(("kind", "kernel", "stride", "ceil_mode"), POOLS)
@pytest.mark.parametrize("channels", thinned([1, 5, 16, 35], (1, 3)))
def test_pools(kind, kernel, stride, ceil_mode, channels):
    found = [results(kind(kernel, stride, ceil_mode=ceil_mode), (17, 18, channels), 3, k) for k in ("direct", "blas")]
    for got, want in zip(*found, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [lambda: Conv2d(5, 3), lambda: Dense(9), lambda: MaxPool2d(3, 2)])
@pytest.mark.parametrize(
    ("kernels", "dtype"), thinned([("direct", "float32"), ("blas", "float32"), ("direct", "uint16")], (0, 1))
)
def test_relu_that_is_absorbed(make, kernels, dtype):
    shape = (40,) if isinstance(make(), Dense) else (7, 8, 3)
    given = half if dtype == "uint16" else np.asarray
    apart = Bench([make(), ReLU()], shape, 4, dtype, kernels)
    layer = make()
    assert layer.absorb(ReLU())
    assert not layer.absorb(ReLU()), "once is enough"
    assert not make().absorb(Flatten())
    merged = Bench([layer], shape, 4, dtype, kernels)
    x = np.random.default_rng(0).standard_normal((4, *shape), dtype=np.float32) - 1.5
    x.reshape(-1)[::97] = np.nan
    x = given(x)
    y = apart.forward(x)
    assert (y == 0).any()
    np.testing.assert_array_equal(merged.forward(x), y)
    dy = given(np.random.default_rng(1).standard_normal(y.shape, dtype=np.float32))
    np.testing.assert_array_equal(merged.backward(dy), apart.backward(dy))
    for one, two in zip(merged.grads, apart.grads, strict=True):
        np.testing.assert_array_equal(one, two)


def bound(layers, shape=(3, 12, 12), n_classes=4, max_batch=11, kernels="direct", n_threads=1, precision="float32"):
    net = Network(layers, shape, n_classes, precision=precision)
    allocator = Allocator()
    net.bind(Arena(net.layout, 0, allocator), max_batch, allocator, kernels, Threads(n_threads))
    initialize(net, 0)
    return net


def step(net, n=11, **how):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((n, *net.input_shape), dtype=np.float32)
    found = net.gradients(x, np.arange(n) % net.n_classes, Pass(True, 1, 2, np.arange(n)), **how)
    return found, net.arena.grads.copy(), net.evaluate(x, np.arange(n) % net.n_classes)


PASSES = [
    *product((mixed,), (1, 4, 11), ("bf16", "float32")),
    *product((grouped, by_tiles), (11,), ("bf16", "float32")),
]


@pytest.mark.full
@pytest.mark.parametrize(("layers", "n", "precision"), PASSES)
def test_bits_depend_on_no_parts_of_a_batch_nor_threads(layers, n, precision, monkeypatch):
    how = {"precision": precision, "kernels": "winograd" if layers is by_tiles else "direct"}
    whole = step(bound(layers(), **how), n)
    for part_bytes, n_threads in ((1, 1), (20_000, 1), (1, 2), (1 << 30, 3)):
        monkeypatch.setattr(section, "PART_BYTES", part_bytes)
        net = bound(layers(), n_threads=n_threads, **how)
        assert net.sections[0].part == (11 if n_threads > 1 else {1: 2, 20_000: net.sections[0].part}[part_bytes])
        found = step(net, n)
        assert found[0] == whole[0]
        assert found[2] == whole[2]
        np.testing.assert_array_equal(found[1], whole[1])


@pytest.mark.parametrize("precision", ["float32", pytest.param("bf16", marks=pytest.mark.full)])
def test_networks_that_end_without_dense_or_begin_with_it(precision, monkeypatch):
    monkeypatch.setattr(section, "PART_BYTES", 1)
    for layers in (
        [Conv2d(4, 12), Flatten()],
        [Flatten(), Dense(4)],
        [Conv2d(4, 12), ReLU(), Flatten(), ReLU()],
        [Flatten(), Dense(4), LayerNorm()],
        [Flatten(), Dense(4), GELU()],
        [Flatten(), Dense(4), Residual([Dense(4), LayerNorm()]), ReLU()],
    ):
        (loss, _), grads, (again, _) = step(bound(layers, precision=precision))
        assert loss == pytest.approx(again)
        assert np.abs(grads).max() > 0


def test_gradients_leave_at_boundaries(monkeypatch):
    for part_bytes in (1, 1 << 30):
        monkeypatch.setattr(section, "PART_BYTES", part_bytes)
        net = bound(mixed())
        _, whole, _ = step(net)
        for boundaries in ((), (0,), (5,), (9,), (0, 5, 9, 12), range(13)):
            left = []
            net.arena.grads[:] = np.nan
            keep = lambda s, left=left, net=net: left.append((s, net.arena.grads[s].copy()))  # noqa: E731
            step(net, hook=LayerHook(boundaries, keep))
            assert left[0][0].stop == net.layout.size
            assert left[-1][0].start == 0
            for (later, gradient), (earlier, _) in pairwise(left):
                assert earlier.stop == later.start
                used = ~np.isnan(gradient)
                np.testing.assert_array_equal(gradient[used], whole[later][used])
                assert used.any()
            assert len(left) >= min(len(boundaries), 1)
    left = []
    step(bound(mixed()), 0, hook=LayerHook((9,), left.append))
    assert left == [slice(0, net.layout.size)]


INPUTS = {"lenet": (1, 28, 28), "cifar_quick": (3, 32, 32)}


@pytest.mark.parametrize("name", ["lenet", "mixed in bf16", pytest.param("cifar_quick", marks=pytest.mark.full)])
def test_step_allocates_nothing(name):
    if name in INPUTS:
        net = bound(load("model", BUILT_IN, name)(INPUTS[name], 10), INPUTS[name], 10, 8)
    else:
        net = bound(mixed(), precision="bf16")
    x = np.random.default_rng(0).standard_normal((8, *net.input_shape), dtype=np.float32)
    labels, state = np.arange(8) % net.n_classes, Pass(True, 1, 2, np.arange(8))
    for _ in range(3):
        net.gradients(x, labels, state)
    tracemalloc.start()
    net.gradients(x, labels, state)
    now, peak = tracemalloc.get_traced_memory()
    arrays = tracemalloc.take_snapshot().filter_traces([tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)])
    tracemalloc.stop()
    assert not arrays.traces, "an array was left"
    # views and the like, which are not arrays: what the first convolution gives for a batch is at least 256,000 bytes
    assert peak < 20_000, (now, peak)


@pytest.mark.full
@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_jitted_code_allocates_nothing(precision, monkeypatch):
    """What Numba calls to allocate an array stands in the machine code of none of the kernels."""
    seen = []

    def run(self, kernel, *args):
        fresh = numba.njit(error_model="numpy")(kernel.py_func)
        fresh(0, 1, *args)
        (code,) = fresh.inspect_asm().values()
        assert "NRT_MemInfo_alloc" not in code, kernel
        seen.append(kernel)

    def allocates(n):
        return np.zeros(n)

    fresh = numba.njit(allocates)
    fresh(3)
    assert "NRT_MemInfo_alloc" in next(iter(fresh.inspect_asm().values())), "this is how it would be seen"
    monkeypatch.setattr(Threads, "run", run)
    monkeypatch.setattr(Threads, "run_phases", lambda self, n, kernel, *args: run(self, kernel, -1, *args))
    net = bound(mixed(), precision=precision)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, *net.input_shape), dtype=np.float32)
    net.gradients(x, np.arange(4), Pass(True, 1, 2, np.arange(4)))
    assert len(set(seen)) == 9


@pytest.mark.parametrize("name", ["lenet", pytest.param("cifar_quick", marks=pytest.mark.full)])
def test_step_calls_compiled_code_once_a_layer(name, monkeypatch):
    net = bound(load("model", BUILT_IN, name)(INPUTS[name], 10), INPUTS[name], 10, 8)
    calls = []
    for method in ("run", "run_phases"):
        plain = getattr(Threads, method)
        monkeypatch.setattr(Threads, method, lambda *a, plain=plain: calls.append(a) or plain(*a))
    step(net, 4)
    passes = 2 * len(net.active) + len(net.active)  # forward, backward, and evaluation
    assert len(calls) <= passes
