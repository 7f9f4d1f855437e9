"""Every layer's gradients against central differences, in float64."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframe.nn.activations import Dropout, Flatten, ReLU
from psframe.nn.base import Pass
from psframe.nn.conv import Conv1d, Conv2d
from psframe.nn.dense import Dense
from psframe.nn.losses import softmax_cross_entropy
from psframe.nn.pool import AvgPool1d, AvgPool2d, MaxPool1d, MaxPool2d
from tests.helpers.layers import Bench

STEP = 1e-3


def differences(f, at):
    """Return the gradient of the scalar ``f()`` by the array ``at``, changed in place and restored."""
    gradient = np.empty(at.shape)
    for index in np.ndindex(at.shape):
        value = at[index]
        at[index] = value + STEP
        above = f()
        at[index] = value - STEP
        gradient[index] = (above - f()) / (2 * STEP)
        at[index] = value
    return gradient


def spread(shape, rng):
    """Return numbers that differ from each other and from 0 by much more than STEP: no step crosses a kink."""
    size = int(np.prod(shape))
    return ((rng.permutation(size) - size // 2 + 0.5) * 0.05).reshape(shape)


def check(layer, input_shape, n=2, spare=1, seed=0, kernels="direct"):
    """Compare all gradients of the layer, whose buffers hold ``spare`` more samples than the batch."""
    rng = np.random.default_rng(seed)
    bench = Bench([layer], input_shape, n + spare, kernels=kernels)
    state = Pass(train=True, seed=seed, epoch=1, samples=np.arange(n))
    x = spread((n, *input_shape), rng)
    dy = rng.standard_normal((n, *bench.output_shape))

    def loss():
        return float((bench.forward(x, state) * dy).sum())

    expected = [differences(loss, a) for a in (x, *bench.params)]
    assert bench.forward(x, state).shape == dy.shape
    for got, want in zip((bench.backward(dy), *bench.grads), expected, strict=True):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9)


CASES = {
    "conv": (lambda: Conv2d(3, 3), (5, 4, 2)),
    "conv-one-channel": (lambda: Conv2d(1, 2), (3, 4, 1)),
    "conv-padding": (lambda: Conv2d(2, 3, padding=2), (3, 2, 2)),
    "conv-padding-beyond-kernel": (lambda: Conv2d(1, 1, padding=3), (2, 2, 1)),
    "conv-stride-beyond-kernel": (lambda: Conv2d(2, 2, stride=3), (7, 6, 1)),
    "conv-oblong": (lambda: Conv2d(2, (1, 3), stride=(2, 1), padding=(0, 1)), (4, 3, 2)),
    "conv-covers-all": (lambda: Conv2d(2, (3, 4)), (3, 4, 2)),
    "conv1d": (lambda: Conv1d(2, 3, stride=2, padding=1), (1, 7, 2)),
    "dense": (lambda: Dense(4), (5,)),
    "dense-one": (lambda: Dense(1), (1,)),
    "max": (lambda: MaxPool2d(2), (4, 6, 3)),
    "max-overlap": (lambda: MaxPool2d(3, 2), (7, 5, 2)),
    "max-ceil": (lambda: MaxPool2d(3, 2, ceil_mode=True), (6, 4, 2)),
    "max-gaps": (lambda: MaxPool2d(1, 3), (5, 5, 1)),
    "max-wide": (lambda: MaxPool2d((1, 300), 1), (1, 301, 1)),
    "max1d": (lambda: MaxPool1d(3, 2, ceil_mode=True), (1, 8, 2)),
    "avg": (lambda: AvgPool2d(2), (4, 6, 3)),
    "avg-overlap": (lambda: AvgPool2d((3, 2), 1), (4, 5, 2)),
    "avg-ceil": (lambda: AvgPool2d(3, 2, ceil_mode=True), (6, 4, 2)),
    "avg1d": (lambda: AvgPool1d(3), (1, 8, 2)),
    "relu": (ReLU, (3, 2, 2)),
    "dropout": (lambda: Dropout(0.5), (3, 2, 2)),
    "flatten": (Flatten, (2, 3, 4)),
    "flatten-sequence": (Flatten, (1, 4, 3)),
    "flatten-view": (Flatten, (1, 1, 5)),
}


#: of convolutions those whose fast kernels the default suite compiles, in seconds a shape; plain ones need none
COMPILED = ("conv1d",)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("spare", [0, 2])
@pytest.mark.parametrize(
    ("kernels", "case"),
    [("blas", case) for case in CASES if case != "max-wide"]  # whose differences take seconds
    + [
        pytest.param(
            "direct", case, marks=[pytest.mark.full] * (case.startswith(("conv", "dense")) and case not in COMPILED)
        )
        for case in CASES
    ],
)
def test_gradients(kernels, case, n, spare):
    make, input_shape = CASES[case]
    check(make(), input_shape, n, spare, kernels=kernels)


small = st.integers(1, 4)


@pytest.mark.full  # each shape is compiled, which takes seconds
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.tuples(small, small),
    st.tuples(small, small),
    st.tuples(small, small),
    st.integers(0, 2),
    small,
    small,
    small,
)
def test_conv_of_odd_sizes(kernel, extra, stride, padding, c_in, c_out, n):
    h, w = (max(1, k + e - 2 * padding) for k, e in zip(kernel, extra, strict=True))
    check(Conv2d(c_out, kernel, stride=stride, padding=padding), (h, w, c_in), n)


@pytest.mark.full
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from([MaxPool2d, AvgPool2d]), st.booleans(), st.tuples(small, small), st.tuples(small, small), small)
def test_pools_of_odd_sizes(pool, ceil_mode, kernel, stride, n):
    h, w = kernel[0] + n - 1, kernel[1] + stride[0]
    check(pool(kernel, stride, ceil_mode=ceil_mode), (h, w, n), n, seed=n)


def test_softmax_cross_entropy():
    rng = np.random.default_rng(0)
    logits, labels = rng.standard_normal((4, 5)), np.array([0, 4, 2, 2])
    got = np.empty_like(logits)
    softmax_cross_entropy(logits, labels, got)
    # the loss is no polynomial: a fourth-order difference keeps the error below the tolerance
    none = got[:0]
    want = np.empty_like(logits)
    for index in np.ndindex(logits.shape):
        moved = [logits.copy() for _ in range(4)]
        for m, step in zip(moved, (-2, -1, 1, 2), strict=True):
            m[index] += step * STEP
        far_below, below, above, far_above = (softmax_cross_entropy(m, labels, none)[0] for m in moved)
        want[index] = (8 * (above - below) - (far_above - far_below)) / (12 * STEP)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9)
