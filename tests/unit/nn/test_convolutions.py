"""Grouped, dilated, depthwise and 1x1 convolutions against PyTorch, and to the bit over threads."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframe.errors import UserError
from psframe.nn.activations import ReLU
from psframe.nn.base import Pass
from psframe.nn.conv import Conv1d, Conv2d
from psframe.nn.conv.unfolded import Unfolded
from tests.helpers.layers import Bench

pytest.importorskip("torch", reason="PyTorch, which the layers are compared with, is not installed")
from tests.helpers.suite import examples
from tests.helpers.thinned import thinned
from tests.helpers.torch_twin import Twins

small = st.integers(1, 3)
pair = st.tuples(small, small)


def drawn(draw, groups, inside, outside):
    """Return a convolution and the shape of a sample that it can take."""
    kernel, stride, dilation = (draw(pair) for _ in range(3))
    padding = draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
    extra = draw(st.tuples(st.integers(0, 6), st.integers(0, 11)))
    sides = [max(1, (k - 1) * d + 1 - 2 * p) + e for k, d, p, e in zip(kernel, dilation, padding, extra, strict=True)]
    options = {"stride": stride, "padding": padding, "dilation": dilation, "bias": draw(st.booleans())}
    return Conv2d(outside, kernel, groups=groups, **options), (*sides, inside)


@st.composite
def gathered(draw):
    groups, inside, outside = draw(small), draw(small), draw(small)
    return drawn(draw, groups, groups * inside, groups * outside)


@st.composite
def depthwise(draw):
    channels = draw(st.sampled_from([2, 5, 16, 21, 33]))
    return drawn(draw, channels, channels, channels)


def check(layer, shape, n, relu, kernels, dtype, rtol, n_threads=1):
    x = np.random.default_rng(n).standard_normal((n, *shape)).astype(dtype)
    layers = [layer, *[ReLU()] * relu]
    Twins(layers, shape, n, dtype=dtype, kernels=kernels, n_threads=n_threads).check(x, rtol)


@pytest.mark.full
@settings(max_examples=24, deadline=None, derandomize=True)
@given(gathered(), st.integers(1, 4), st.booleans())
def test_grouped_and_dilated_are_those_of_pytorch(made, n, relu):
    check(*made, n, relu, "blas", "float64", 1e-9)


@settings(max_examples=examples(10), deadline=None, derandomize=True)
@given(depthwise(), st.integers(1, 4), st.booleans(), st.integers(1, 2))
def test_depthwise_is_that_of_pytorch(made, n, relu, n_threads):
    check(*made, n, relu, "direct", "float32", 1e-5, n_threads)


@pytest.mark.full
@settings(max_examples=12, deadline=None, derandomize=True)
@given(gathered(), st.integers(1, 4), st.booleans())
def test_grouped_and_dilated_by_the_microkernel(made, n, relu):
    check(*made, n, relu, "direct", "float32", 1e-4)


@pytest.mark.full
def test_one_of_each_by_the_microkernel():
    check(Conv2d(6, 3, padding=2, dilation=2, groups=2), (7, 6, 4), 2, True, "direct", "float32", 1e-4)
    check(Conv2d(20, 1), (5, 7, 12), 3, True, "direct", "float32", 1e-4)


@pytest.mark.parametrize(
    ("layer", "shape", "n"),
    [
        pytest.param(lambda: Conv2d(256, 3, padding=1), (2, 2, 128), 5, marks=pytest.mark.full),
        (lambda: Conv2d(300, (3, 2), stride=2, padding=(1, 0)), (3, 4, 260), 70),  # samples in several parts
        (lambda: Conv2d(257, 3, bias=False), (3, 3, 130), 3),
    ],
)
def test_small_images_with_large_weights(layer, shape, n):
    x = np.random.default_rng(0).standard_normal((n, *shape), dtype=np.float32)
    results = []
    for n_threads in (1, 2):
        twins = Twins([layer(), ReLU()], shape, n, n_threads=n_threads)
        assert isinstance(twins.bench.layers[0].kernels, Unfolded)
        twins.check(x, 2e-5)
        results.append([*twins.bench.grads])
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.full
def test_parts_of_a_batch_change_no_bit_of_large_weights():
    x, dy = (
        np.random.default_rng(0).standard_normal((5, *shape), dtype=np.float32) for shape in ((3, 3, 130), (1, 1, 257))
    )
    results = []
    for parts in ((slice(0, 5),), (slice(0, 2), slice(2, 5))):
        bench = Bench([Conv2d(257, 3)], (3, 3, 130), 5, "float32")
        for part in parts:
            bench.forward(x[part], Pass(first=part.start, adds=part.start > 0))
            bench.backward(dy[part])
        assert isinstance(bench.layers[0].kernels, Unfolded)
        results.append(bench.grads)
    for whole, parted in zip(*results, strict=True):
        np.testing.assert_array_equal(whole, parted)


def test_sequences_have_groups_and_dilation():
    x = np.random.default_rng(0).standard_normal((2, 1, 17, 6)).astype(np.float32)
    for layer in (Conv1d(6, 3, padding=2, dilation=2, groups=6), Conv1d(4, 3, dilation=3, groups=2)):
        Twins([layer], x.shape[1:], 2, flat=True, kernels="blas").check(x, 1e-5)


@pytest.mark.parametrize(
    "layer", thinned([lambda: Conv2d(21, 3, padding=1, groups=21), lambda: Conv2d(42, 3, groups=21)], (0,))
)
def test_threads_change_no_bit_of_a_grouped_convolution(layer):
    x = np.random.default_rng(0).standard_normal((5, 6, 5, 21), dtype=np.float32)
    results = []
    for n_threads in (1, 3):
        bench = Bench([layer()], x.shape[1:], 6, "float32", n_threads=n_threads)
        y = bench.forward(x, Pass(train=True)).copy()
        results.append([y, bench.backward(y), *bench.grads])
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)


def test_depthwise_adds_the_gradients_of_passes():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((3, 4, 5, 8), dtype=np.float32)
    bench = Bench([Conv2d(8, 3, padding=1, groups=8)], (4, 5, 8), 3, "float32")
    y = bench.forward(x, Pass(train=True)).copy()
    bench.backward(y)
    once = [grad.copy() for grad in bench.grads]
    bench.forward(x, Pass(train=True, adds=True))
    bench.backward(y)
    for twice, one in zip(bench.grads, once, strict=True):
        np.testing.assert_allclose(twice, 2 * one, rtol=1e-5)


@pytest.mark.parametrize(("groups", "inside", "outside"), [(2, 9, 6), (3, 9, 4)])
def test_groups_must_divide_channels(groups, inside, outside):
    says = f"layer 2, Conv2d.*groups divide.*got {inside} and {outside} with groups={groups}; mend"
    with pytest.raises(UserError, match=says):
        Conv2d(outside, 3, groups=groups).setup((5, 5, inside), 2)


def test_kernels_must_fit_with_their_dilation():
    with pytest.raises(UserError, match=r"kernel \(3, 3\).*got \(H, W\) = \(6, 6\)"):
        Conv2d(6, 3, dilation=3).setup((6, 6, 2), 0)
