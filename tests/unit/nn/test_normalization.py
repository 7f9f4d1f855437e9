"""Normalization layers against PyTorch, and what they promise about bits and far means."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframe.errors import UserError
from psframe.nn.activations import ReLU
from psframe.nn.base import Pass
from psframe.nn.normalization import BatchNorm, GroupNorm, LayerNorm
from tests.helpers.layers import Bench
from tests.helpers.suite import IS_FULL, examples

pytest.importorskip("torch", reason="PyTorch, which the layers are compared with, is not installed")
from tests.helpers.torch_twin import Twins, close

side = st.integers(1, 9)
#: groups, and channels of each; few by default, since kernels are compiled for each number of channels, in a second
FEW_SIZES = st.sampled_from([(1, 2), (3, 2), (2, 5), (1, 16), (3, 7), (3, 23)])
SIZES = st.tuples(st.integers(1, 3), st.integers(2, 23)) if IS_FULL else FEW_SIZES
MAKE = {
    "batch": lambda groups: BatchNorm(momentum=0.3, eps=1e-3),
    "group": GroupNorm,
    "layer": lambda groups: LayerNorm(),
}


@settings(max_examples=examples(40), deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(sorted(MAKE)),
    sides=st.one_of(st.tuples(), st.tuples(side, side)),
    size=SIZES,
    n=st.integers(2, 5),
    relu=st.booleans(),
    offset=st.sampled_from([0.0, 5.0, -40.0]),
)
def test_normalization_is_that_of_pytorch(kind, sides, size, n, relu, offset):
    groups, of_group = size
    layers, shape = [MAKE[kind](groups), *[ReLU()] * relu], (*sides, groups * of_group)
    x = np.random.default_rng(n).standard_normal((n, *shape)) * 3 + offset
    # two numbers a group have a gradient of nearly 0, the difference of large ones: float64 tells them apart
    Twins(layers, shape, n, dtype="float64").check(x, 1e-7)


@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("n", [1, 16])
def test_normalization_in_float32(kind, n):
    shape = (16, 16, 24)
    x = np.random.default_rng(n).standard_normal((n, *shape), dtype=np.float32) * 2 + 1
    Twins([MAKE[kind](3)], shape, n).check(x, 1e-5)
    Twins([MAKE[kind](3)], shape, n).check(x, 1e-5, train=False)


@pytest.mark.parametrize("kind", MAKE)
def test_absorbed_relu_gives_what_relu_gives(kind):
    x = np.random.default_rng(0).standard_normal((3, 5, 4, 21), dtype=np.float32)
    results = []
    for absorbs in (True, False):
        layer = MAKE[kind](3)
        assert not absorbs or (layer.absorb(ReLU()) and not layer.absorb(ReLU()))
        bench = Bench([layer] if absorbs else [layer, ReLU()], x.shape[1:], 3, "float32")
        y = bench.forward(x, Pass(train=True)).copy()
        results.append([y, bench.backward(np.ones_like(y)), *bench.grads])
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("kind", MAKE)
def test_threads_change_no_bit_of_a_normalization(kind):
    x = np.random.default_rng(0).standard_normal((5, 6, 5, 33), dtype=np.float32)
    results = []
    for n_threads in (1, 3):
        bench = Bench([MAKE[kind](3)], x.shape[1:], 6, "float32", n_threads=n_threads)
        y = bench.forward(x, Pass(train=True)).copy()
        results.append([y, bench.backward(y + 1), *bench.grads])
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)


def test_variance_far_from_zero_keeps_its_digits():
    x = (np.random.default_rng(0).standard_normal((4, 32, 32, 2)) + 1e4).astype(np.float32)
    layer = BatchNorm()
    Bench([layer], x.shape[1:], 4, "float32").forward(x, Pass(train=True))
    close(layer.found[0, 1], x.astype(np.float64).var(axis=(0, 1, 2)), 1e-5)


@pytest.mark.parametrize("at", [(0, 0), (0, 63), (63, 63)])
def test_corner_that_is_unlike_all_others_costs_no_digits(at):
    """As behind a padded convolution of images far from zero."""
    x = np.random.default_rng(0).standard_normal((2, 64, 64, 3)).astype(np.float32)
    x[:, at[0], at[1]] = 1000
    layer = BatchNorm()
    Bench([layer], x.shape[1:], 2, "float32").forward(x, Pass(train=True))
    close(layer.found[0, 1], x.astype(np.float64).var(axis=(0, 1, 2)), 1e-5)


def test_gradients_of_several_passes_add_up():
    rng = np.random.default_rng(0)
    x, dy = rng.standard_normal((2, 2, 3, 2, 2, 4))
    for make in MAKE.values():
        bench = Bench([make(2)], (2, 2, 4), 3)
        single = []
        for of_pass, of_output in zip(x, dy, strict=True):
            bench.forward(of_pass, Pass(train=True))
            bench.backward(of_output)
            single.append([grad.copy() for grad in bench.grads])
        for adds, (of_pass, of_output) in enumerate(zip(x, dy, strict=True)):
            bench.forward(of_pass, Pass(train=True, adds=bool(adds)))
            bench.backward(of_output)
        for total, one, two in zip(bench.grads, *single, strict=True):
            np.testing.assert_allclose(total, one + two, rtol=1e-12)


def test_one_number_a_channel_has_no_variance():
    bench = Bench([BatchNorm()], (4,), 1)
    y = bench.forward(np.array([[1.0, 2, 3, 4]]), Pass(train=True))
    np.testing.assert_array_equal(y[0], bench.params[1])
    bench.backward(np.ones((1, 4)))
    assert all(np.isfinite(grad).all() for grad in bench.grads)


def test_nan_stays_nan():
    for make in MAKE.values():
        layer = make(1)
        layer.absorb(ReLU())
        bench = Bench([layer], (3, 3, 2), 2, "float32")
        x = np.ones((2, 3, 3, 2), np.float32)
        x[0, 1, 1, 0] = np.nan
        assert np.isnan(bench.forward(x, Pass(train=True))[0, 1, 1, 0])


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: BatchNorm(eps=0), "eps of BatchNorm.*greater than 0, got 0"),
        (lambda: BatchNorm(momentum=0), r"momentum of BatchNorm.*\(0, 1\], got 0"),
        (lambda: GroupNorm(0), "groups must be a whole number of at least 1, got 0"),
        (lambda: GroupNorm(3).setup((2, 2, 8), 5), "layer 5, GroupNorm.*3 groups divide, got 8"),
    ],
)
def test_normalization_refuses_what_does_not_fit(make, says):
    with pytest.raises(UserError, match=says):
        make()
