"""Convolution by transformed tiles: it is the convolution, in any part of a batch and by any number of threads."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframe.nn.activations import ReLU
from psframe.nn.base import Pass
from psframe.nn.conv import Conv2d, winograd
from psframe.nn.conv.geometry import Geometry
from psframe.nn.conv.transforms import POINTS, matrices
from psframe.nn.conv.winograd import Winograd
from tests.helpers.layers import Bench
from tests.helpers.other_cpu import has_avx2, said_on
from tests.helpers.torch_twin import Twins


def exact(shape, seed):
    """Return an array of small fractions, which NumPy computes with as they are."""
    numbers = np.random.default_rng(seed).integers(-9, 10, shape)
    return np.vectorize(Fraction)(numbers)


def around(matrix, x):
    matrix = np.array(matrix)
    return matrix @ x @ matrix.T


@pytest.mark.parametrize("m", POINTS)
def test_matrices_give_the_convolution_and_its_gradient_without_error(m):
    of_input, of_weights, of_output, of_output_gradient, of_weights_gradient = matrices(m)
    d, g, e = exact((m + 2, m + 2), 0), exact((3, 3), 1), exact((m, m), 2)
    convolved = [[(d[i : i + 3, j : j + 3] * g).sum() for j in range(m)] for i in range(m)]
    assert (around(of_output, around(of_weights, g) * around(of_input, d)) == convolved).all()
    gradient = [[(d[a : a + m, b : b + m] * e).sum() for b in range(3)] for a in range(3)]
    products = around(of_input, d) * around(of_output_gradient, e)
    assert (around(of_weights_gradient, products) == gradient).all()


channels = st.sampled_from([1, 5, 16, 17, 35])


@pytest.mark.full  # each shape is compiled, which takes seconds
@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    st.tuples(st.integers(1, 11), st.integers(1, 9)), st.tuples(st.integers(0, 3), st.integers(0, 3)),
    channels, channels, st.integers(1, 4), st.booleans(), st.integers(1, 3), st.sampled_from(["float64", "float32"])
)  # fmt: skip
def test_tiles_are_the_convolution_of_pytorch(extra, padding, c_in, c_out, n, relu, n_threads, dtype):
    with pytest.MonkeyPatch.context() as patch:
        for least in ("CHANNELS", "PIXELS", "SIDE"):
            patch.setattr(winograd, least, 1)
        height, width = (max(1, 3 - 2 * p) + e - 1 for e, p in zip(extra, padding, strict=True))
        layers = [Conv2d(c_out, 3, padding=padding), *[ReLU()] * relu]
        x = np.random.default_rng(n).standard_normal((n, height, width, c_in)).astype(dtype)
        twins = Twins(layers, x.shape[1:], n, dtype=dtype, kernels="winograd", n_threads=n_threads)
        assert isinstance(layers[0].kernels, Winograd)
        twins.check(x, 1e-9 if dtype == "float64" else 1e-4)


def made(n_threads=1, kernels="winograd"):
    return Bench([Conv2d(40, 3, padding=1), ReLU()], (9, 8, 35), 6, "float32", kernels, n_threads)


def passed(bench, x, dy, state=None):
    """Return output and all gradients of a pass, as copies."""
    y = bench.forward(x, state).copy()
    return [y, bench.backward(dy).copy(), *(gradient.copy() for gradient in bench.grads)]


X, DY = (np.random.default_rng(0).standard_normal((5, 9, 8, c), dtype=np.float32) for c in (35, 40))


def test_tiles_at_all_edges_and_in_several_blocks_give_what_blas_does():
    for got, want in zip(passed(made(), X, DY), passed(made(kernels="blas"), X, DY), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_threads_change_no_bit():
    alone = passed(made(), X, DY)
    for n_threads in (2, 3, 7):
        for one, many in zip(alone, passed(made(n_threads), X, DY), strict=True):
            np.testing.assert_array_equal(one, many)


def test_parts_of_a_batch_change_no_bit():
    whole, bench = passed(made(), X, DY), made()
    for part, adds in ((slice(0, 2), False), (slice(2, 5), True)):
        output, of_input, *gradients = passed(bench, X[part], DY[part], Pass(first=part.start, adds=adds))
        np.testing.assert_array_equal(output, whole[0][part])
        np.testing.assert_array_equal(of_input, whole[1][part])
    for got, want in zip(gradients, whole[2:], strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.full
def test_blocks_of_tiles_change_no_bit(monkeypatch):
    """They have other sizes on other CPUs."""
    whole = passed(made(), X, DY)
    monkeypatch.setattr(winograd, "BYTES", 0)
    for least in (1, 5):
        monkeypatch.setattr(winograd, "LEAST_TILES", least)
        for got, want in zip(passed(made(), X, DY), whole, strict=True):
            np.testing.assert_array_equal(got, want)


def test_weights_are_those_of_the_step():
    """Also in a pass that is not of training, and with other arrays, as a trained network has them."""
    benches = made(), made(kernels="blas")
    for number in range(3):
        for bench in benches:
            bench.params[0][...] = np.random.default_rng(number).uniform(-0.5, 0.5, bench.params[0].shape)
            if number == 2:
                own = dict(zip(bench.layers[0].params, map(np.copy, bench.params), strict=True))
                bench.layers[0].use(own)
                bench.params[0][...] = np.nan
        got, want = (bench.forward(X, Pass(train=number == 0)).copy() for bench in benches)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
        if number == 0:
            np.testing.assert_allclose(*(bench.backward(DY) for bench in benches), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("n_threads", [1, 2])
def test_no_samples_have_gradients_of_zero(n_threads):
    _, of_input, *gradients = passed(made(n_threads), X[:0], DY[:0])
    assert len(of_input) == 0
    assert not any(gradient.any() for gradient in gradients)


@pytest.mark.full
def test_error_is_a_few_times_that_of_the_direct_form():
    errors = []
    for kernels in ("winograd", "direct"):
        benches = [Bench([Conv2d(64, 3, padding=1)], (16, 16, 64), 4, *form)
                   for form in (("float32", kernels), ("float64", "blas"))]  # fmt: skip
        x, dy = np.random.default_rng(1).standard_normal((2, 4, 16, 16, 64), dtype=np.float32)
        for single, double in zip(benches[0].params, benches[1].params, strict=True):
            single[...] = double
            double[...] = single
        pairs = zip(*(passed(bench, x.astype(bench.dtype), dy.astype(bench.dtype)) for bench in benches), strict=True)
        errors.append(
            [np.sqrt(np.square(single - double).mean() / np.square(double).mean()) for single, double in pairs]
        )
    for fewer, direct in zip(*errors, strict=True):
        assert fewer < 6 * direct


def test_only_shapes_that_pay_are_computed_so():
    def of(size, c, out, **keys):
        return Geometry((*size, c), (*size, out), **{"kernel": (3, 3), "stride": (1, 1), "padding": (1, 1), **keys})

    assert winograd.pays(of((7, 7), 32, 32))
    assert not winograd.pays(of((6, 8), 32, 32))
    assert not winograd.pays(of((7, 7), 3, 64))
    assert not winograd.pays(of((7, 7), 64, 16))
    assert not winograd.pays(of((3, 64), 64, 64))
    for other in ({"kernel": (5, 5)}, {"stride": (2, 1)}, {"dilation": (2, 2)}, {"kernel": (1, 3)}):
        assert not winograd.pays(of((7, 7), 64, 64, **other))


@pytest.mark.full
@has_avx2
def test_bits_are_the_same_at_any_width_of_vectors():
    (width, digest), (_, mine) = (said_on(cpu, "tests.helpers.layer_digest", "winograd") for cpu in ("haswell", None))
    assert (width, digest) == ("32", mine)
