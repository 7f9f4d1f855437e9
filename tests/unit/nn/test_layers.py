"""What layers refuse, dropout's randomness, the loss's corner cases, and agreement to the bit."""

import contextlib
import importlib
import inspect
import itertools
import tracemalloc

import numba
import numpy as np
import pytest

from psframe import models
from psframe.errors import UserError
from psframe.nn.activations import Dropout, Flatten, ReLU
from psframe.nn.base import Pass
from psframe.nn.conv import Conv1d, Conv2d
from psframe.nn.dense import Dense, loops
from psframe.nn.jit import jit
from psframe.nn.losses import softmax_cross_entropy
from psframe.nn.normalization import BatchNorm, GroupNorm, LayerNorm
from psframe.nn.pool import AvgPool2d, MaxPool1d, MaxPool2d
from psframe.nn.residual import Residual, Subsample
from psframe.nn.smooth import LeakyReLU
from tests.helpers.layers import Bench
from tests.helpers.thinned import thinned


@pytest.mark.parametrize(
    ("make", "input_shape", "says"),
    [
        (lambda: Conv2d(4, 5), (4, 9, 1), r"layer 3, Conv2d.*kernel \(5, 5\).*\(4, 9\).*padding"),
        (lambda: Conv2d(4, 5), (9,), "layer 3, Conv2d.*images.*before Flatten"),
        (lambda: Conv1d(4, 5), (9, 9, 1), "layer 3, Conv1d.*sequences.*2-D"),
        (lambda: Conv1d(4, 5), (1, 4, 1), "layer 3, Conv1d.*kernel"),
        (lambda: Conv2d(0, 5), (9, 9, 1), "out_channels.*at least 1, got 0"),
        (lambda: Conv2d(4, (5, 0)), (9, 9, 1), "kernel.*at least 1, got 0"),
        (lambda: Conv2d(4, 2.5), (9, 9, 1), "kernel.*whole number.*got 2.5"),
        (lambda: Conv2d(4, (1, 2, 3)), (9, 9, 1), r"kernel.*got \(1, 2, 3\)"),
        (lambda: Conv2d(4, 5, padding=-1), (9, 9, 1), "padding.*at least 0, got -1"),
        (lambda: Conv2d(4, 5, stride=True), (9, 9, 1), "stride.*got True"),
        (lambda: Conv1d(4, (1, 5)), (1, 9, 1), r"kernel.*got \(1, 5\)"),
        (lambda: Conv2d(4, 5, init="hee"), (9, 9, 1), "init.*'hee'.*did you mean 'he'"),
        (lambda: Dense(4), (3, 3, 2), "layer 3, Dense.*Flatten before"),
        (lambda: Dense(0), (3,), "out_features.*got 0"),
        (lambda: MaxPool2d(3), (2, 5, 1), r"layer 3, MaxPool2d.*\(3, 3\).*\(2, 5\)"),
        (lambda: AvgPool2d(9, 2, ceil_mode=True), (2, 5, 1), "layer 3, AvgPool2d"),
        (lambda: MaxPool1d(2), (2, 5, 1), "layer 3, MaxPool1d.*sequences"),
        (lambda: Flatten(), (4,), "layer 3, Flatten.*images"),
        (lambda: Dropout(1.0), (4,), r"Dropout.*\[0, 1\), got 1.0"),
    ],
)
def test_layers_refuse_what_does_not_fit(make, input_shape, says):
    with pytest.raises(UserError, match=says):
        make().setup(input_shape, 3)


#: layers, each with what it must be given
LAYERS = {
    **{Conv2d: (4, 3), Conv1d: (4, 3), Dense: (4,), MaxPool2d: (2,), AvgPool2d: (2,), MaxPool1d: (2,)},
    **{BatchNorm: (), GroupNorm: (2,), LayerNorm: (), Dropout: (0.5,), LeakyReLU: (), Subsample: (4,)},
    Residual: ([ReLU()],),
}
ODD = (np.int64(2), "x", None, [1], (1, 2, 3), object(), True, -1, 0, 1.5, 1e300, float("nan"), float("inf"), 10**400)


@pytest.mark.parametrize("kind", LAYERS)
def test_layers_take_what_is_odd_or_refuse_it_in_a_sentence(kind):
    names, shape = list(inspect.signature(kind).parameters), (1 if kind.__name__.endswith("1d") else 4, 4, 4)
    assert kind(*LAYERS[kind]).setup((64,) if kind is Dense else shape, 0)
    for name, value in itertools.product(names, ODD):
        with contextlib.suppress(UserError):
            kind(**{**dict(zip(names, LAYERS[kind], strict=False)), name: value}).setup(shape, 0)


@pytest.mark.parametrize("name", models.BUILT_IN)
def test_models_name_those_that_fit(name):
    module, _, attr = models.BUILT_IN[name].partition(":")
    model = getattr(importlib.import_module(module), attr)
    wrong, fitting = ((3, 32, 32), "lenet, cifar_quick, ") if name.startswith("har") else ((9, 128), "har_cnn")
    with pytest.raises(UserError, match=f"model {name} takes .*; choose one of {fitting}"):
        model(wrong, 10)
    with pytest.raises(UserError, match="mend the dataset"):
        model((5,), 10)
    if not name.startswith("har"):
        with pytest.raises(UserError, match=r"grey images as \(n, 1, H, W\)"):
            model((28, 28), 10)


def dropped(samples, index=0, seed=1, epoch=2, p=0.5, features=64):
    layer = Dropout(p)
    bench = Bench([layer], (features,), len(samples))
    layer.setup((features,), index)
    x = np.ones((len(samples), features))
    return bench.forward(x, Pass(train=True, seed=seed, epoch=epoch, samples=np.array(samples)))


def test_dropout_depends_on_seed_epoch_sample_and_layer_alone():
    rows = dropped([7, 3, 5])
    np.testing.assert_array_equal(rows[[1]], dropped([3]))
    np.testing.assert_array_equal(rows[::-1], dropped([5, 3, 7]))
    for other in ({"seed": 2}, {"epoch": 3}, {"index": 1}):
        assert (rows != dropped([7, 3, 5], **other)).any()
    assert (rows[0] != rows[1]).any()


def test_dropout_keeps_the_mean_and_is_off_in_evaluation():
    rows = dropped(range(1000), p=0.3)
    assert set(np.unique(rows)) == {0.0, float(np.float32(1) / np.float32(0.7))}
    assert rows.mean() == pytest.approx(1, abs=0.01)
    bench = Bench([Dropout(0.3)], (4,), 2)
    x = np.ones((2, 4))
    np.testing.assert_array_equal(bench.forward(x, Pass(train=False)), x)
    np.testing.assert_array_equal(bench.backward(x), x)


def test_pooling_takes_the_first_maximum_and_nan():
    bench = Bench([MaxPool2d(2)], (2, 2, 3), 1)
    x = np.array([[1, np.nan, -np.inf], [1, 5, -np.inf], [0, 5, -np.inf], [1, 1, -np.inf]]).reshape(1, 2, 2, 3)
    np.testing.assert_array_equal(bench.forward(x)[0, 0, 0], [1, np.nan, -np.inf])
    dx = bench.backward(np.ones((1, 1, 1, 3)))
    np.testing.assert_array_equal(dx.reshape(4, 3), [[1, 1, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]])


def test_max_pooling_remembers_in_the_smallest_type():
    for width, dtype in ((255, "uint8"), (256, "int32")):
        layer = MaxPool1d(width)
        Bench([layer], (1, 300, 1), 1)
        assert layer.argmax.dtype == dtype


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_loss_of_huge_and_equal_logits(dtype):
    logits = np.array([[1e4, -1e4, 0], [3e38, 3e38, -3e38], [0, 0, 0]], dtype)
    dlogits = np.full_like(logits, np.nan)
    loss, n_correct = softmax_cross_entropy(logits, np.array([1, 0, 1]), dlogits)
    assert loss == pytest.approx(2e4 + np.log(2) + np.log(3))
    assert n_correct == 1  # of equals the first is the answer: right in the second row, wrong in the third
    expected = [[1, -1, 0], [-0.5, 0.5, 0], [1 / 3, -2 / 3, 1 / 3]]
    np.testing.assert_allclose(dlogits, expected, rtol=1e-6)


def test_loss_without_gradient_or_samples_and_wrong_labels():
    logits = np.random.default_rng(0).standard_normal((5, 3))
    labels, dlogits = np.array([0, 1, 2, 0, 1]), np.full((5, 3), 9.0)
    without = softmax_cross_entropy(logits, labels, dlogits[:0])
    assert (dlogits == 9).all()
    assert without == softmax_cross_entropy(logits, labels, dlogits)
    np.testing.assert_allclose(dlogits.sum(axis=1), 0, atol=1e-15)
    assert softmax_cross_entropy(logits[:0], labels[:0], dlogits[:0]) == (0.0, 0)
    for label in (3, -1):
        with pytest.raises(UserError, match=rf"labels must lie in \[0, 3\), got {label}"):
            softmax_cross_entropy(logits, np.full(5, label), dlogits)


def small_network():
    return [
        *(Conv2d(4, 3, padding=1), MaxPool2d(3, 2, ceil_mode=True), ReLU(), AvgPool2d(2), Dropout(0.4)),
        *(Flatten(), Dense(8), ReLU(), Dense(3)),
    ]


@pytest.mark.full
def test_runs_agree_to_the_bit():
    x = np.random.default_rng(0).standard_normal((5, 9, 8, 2), dtype=np.float32)
    runs = []
    for spare in (0, 3):
        bench = Bench(small_network(), (9, 8, 2), 5 + spare, "float32")
        y = bench.forward(x, Pass(train=True, samples=np.arange(5))).copy()
        runs.append([y, bench.backward(y).copy(), *bench.grads])
    for one, two in zip(*runs, strict=True):
        np.testing.assert_array_equal(one, two)


def test_short_batch_leaves_nothing_of_the_one_before():
    x = np.random.default_rng(0).standard_normal((5, 9, 8, 2), dtype=np.float32)
    used, fresh = (Bench(small_network(), (9, 8, 2), 5, "float32") for _ in range(2))
    used.backward(used.forward(x, Pass(train=True, samples=np.arange(5))))
    results = []
    for bench in (used, fresh):
        y = bench.forward(x[:2], Pass(train=True, samples=np.arange(2)))
        results.append([bench.backward(y), *bench.grads])
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)


def test_batch_of_none_gives_gradients_of_zero():
    bench = Bench(small_network(), (9, 8, 2), 5, "float32")
    assert bench.forward(np.empty((0, 9, 8, 2), np.float32), Pass(train=True)).shape == (0, 3)
    assert bench.backward(np.empty((0, 3), np.float32)).shape == (0, 9, 8, 2)
    assert all((grad == 0).all() for grad in bench.grads)


def test_passes_allocate_no_arrays():
    rng, state = np.random.default_rng(0), Pass(train=True, samples=np.arange(8))
    bench = Bench(small_network(), (36, 32, 16), 8, "float32")
    x, dy = (rng.standard_normal((8, *shape), dtype=np.float32) for shape in ((36, 32, 16), (3,)))
    bench.backward(bench.forward(x, state))  # the first pass compiles
    tracemalloc.start()
    bench.forward(x, state)
    bench.backward(dy)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 64 * 1024 < x.nbytes / 4  # NumPy reduces through a 32 KiB buffer of its own


@pytest.mark.parametrize("make", [ReLU, lambda: MaxPool2d(2), lambda: AvgPool2d(3, 2), Flatten, lambda: Dropout(0.5)])
def test_cut_of_a_batch_changes_no_bit(make):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((7, 6, 5, 3), dtype=np.float32)
    bench = Bench([make()], (6, 5, 3), 7, "float32")
    dy = rng.standard_normal((7, *bench.output_shape), dtype=np.float32)

    def both_ways(part):
        y = bench.forward(x[part], Pass(train=True, samples=np.arange(7)[part])).copy()
        return y, bench.backward(dy[part]).copy()

    whole = both_ways(slice(0, 7))
    parts = [both_ways(slice(0, 3)), both_ways(slice(3, 7))]
    for one, cut in zip(whole, zip(*parts, strict=True), strict=True):
        np.testing.assert_array_equal(one, np.concatenate(cut))


@pytest.mark.parametrize("layer", thinned([Conv2d(4, 3, padding=1), Dense(8), MaxPool2d(2), ReLU(), Flatten()], (3, 4)))
def test_layers_do_not_write_to_their_input(layer):
    shape = (5, 16) if isinstance(layer, Dense) else (5, 9, 8, 2)
    x = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    bench, before = Bench([layer], x.shape[1:], 5, "float32"), x.copy()
    x.flags.writeable = False
    bench.backward(np.ones_like(bench.forward(x)))
    np.testing.assert_array_equal(x, before)


def test_initial_bounds():
    for init, variance in (("xavier", 1), ("he", 2)):
        layer = Conv2d(4, 3, init=init)
        layer.setup((5, 5, 2), 0)
        assert layer.params["weight"].bound ** 2 / 3 == pytest.approx(variance / 18)
        assert layer.params["bias"].bound == 0


def test_dense_layers_of_any_larger_batch_have_one_code():
    def compiled(n):
        bench = Bench([Dense(6)], (11,), n, "float32")
        bench.backward(bench.forward(np.ones((n, 11), np.float32)))
        return len(loops.forward.signatures), len(loops.backward.signatures)

    before = compiled(16)
    assert [compiled(n) for n in (8, 9, 17, 32, 70)] == [before] * 5


def one_more(x):
    return x + 1


def test_cache_without_a_place_to_keep_it(monkeypatch):
    plain = numba.njit

    def njit(*given, **options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function 'f': no locator available for file 'f.py'")
        return plain(*given, **options)

    monkeypatch.setattr(numba, "njit", njit)
    assert jit(one_more)(1) == 2


def test_whole_numbers_of_numpy_are_taken():
    assert Conv2d(np.int64(4), np.int32(3), stride=np.int8(2)).setup((9, 9, 1), 0) == (4, 4, 4)
