"""Sums and updates: one order of operations, to the bit; and what they compute."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe import compiled
from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena, Layout, Vectors
from psframe.nn.base import Param
from psframe.optim import SGD, AdaGrad, Adam, Updater
from tests.helpers import own
from tests.helpers.bfloat16_model import rounded

F = np.float32


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


@given(st.integers(1, 9), st.integers(0, 9000), st.integers(1, 10**6))
def test_mean_is_a_left_fold(n_rows, size, n_samples):
    rows = numbers(size, n_rows, size) * 10 ** np.arange(n_rows, dtype=F)[:, None]
    total = rows[0].copy()
    for row in rows[1:]:
        total = total + row
    out = np.full(size, np.nan, F)
    assert compiled.elementwise.Mean(list(rows)).over(n_samples).into(out)
    np.testing.assert_array_equal(out, total / F(n_samples))


def test_row_at_first_may_be_the_result():
    rows = numbers(0, 3, 5000)
    out = np.empty(5000, F)
    compiled.elementwise.Mean(list(rows)).over(7).into(out)
    compiled.elementwise.Mean(list(rows)).over(7).into(rows[0])
    np.testing.assert_array_equal(rows[0], out)


def test_rows_of_other_lengths_or_types_are_refused():
    for rows in ([], [np.empty(4, F), np.empty(5, F)], [np.empty(4)]):
        with pytest.raises(ValueError, match=r"row|dtype"):
            compiled.elementwise.Mean(rows)


def test_sum_keeps_its_arrays_alive():
    out = np.empty(100_000, F)
    fold = compiled.elementwise.Mean([np.ones(100_000, F) for _ in range(3)])
    _ = [np.full(100_000, 9, F) for _ in range(8)]
    fold.into(out)
    assert (out == 3).all()


OPTIMIZERS = {
    "sgd": SGD(lr=0.1),
    "decay": SGD(lr=0.1, weight_decay=0.01),
    "momentum": SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": Adam(lr=0.01, weight_decay=0.1),
    "adagrad": AdaGrad(lr=0.01, weight_decay=0.1),
}


def held(params, state, params_bf16=()):
    """An arena over vectors that stand already."""
    size = len(params[0])
    vectors = Vectors(params, np.zeros(size, F), state, params_bf16)
    return Arena(Layout({"all": Param((size,), (0,))}), 0, Allocator(), vectors=vectors)


def run(optimizer, n_steps, size, cuts=()):
    params, state = numbers(1, size), np.zeros((optimizer.n_state, size), F)
    update = Updater(optimizer, held([params], [state]))
    edges = [0, *cuts, size]
    for step in range(1, n_steps + 1):
        gradient = numbers((2, step), size)
        for low, high in pairwise(edges):
            update(slice(low, high), gradient[low:high], optimizer.lr, step)
    return params, state


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_updates_by_slices_have_the_bits_of_whole_ones(name):
    for a, b in zip(run(OPTIMIZERS[name], 5, 1003), run(OPTIMIZERS[name], 5, 1003, (1, 17, 512, 1000)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_in_float32_operation_by_operation(nesterov):
    optimizer = SGD(lr=0.1, momentum=0.9, nesterov=nesterov, weight_decay=0.01)
    w, v = numbers(1, 1003), np.zeros(1003, F)
    for step in range(1, 6):
        d = numbers((2, step), 1003) + F(0.01) * w
        v = F(0.9) * v + d
        w = w - F(0.1) * (d + F(0.9) * v if nesterov else v)
    np.testing.assert_array_equal(run(optimizer, 5, 1003)[0], w)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_agree_with_pytorch(name):
    torch = pytest.importorskip("torch", reason="PyTorch, the reference, is not installed")
    o = OPTIMIZERS[name]
    w = torch.nn.Parameter(torch.from_numpy(numbers(1, 50)))
    if isinstance(o, Adam):
        reference = torch.optim.Adam([w], o.lr, (o.beta1, o.beta2), o.eps, o.weight_decay)
    elif isinstance(o, AdaGrad):
        reference = torch.optim.Adagrad([w], o.lr, 0, o.weight_decay, 0, o.eps)
    else:
        reference = torch.optim.SGD([w], o.lr, o.momentum, 0, o.weight_decay, o.nesterov)
    for step in range(1, 21):
        w.grad = torch.from_numpy(numbers((2, step), 50))
        reference.step()
    np.testing.assert_allclose(run(o, 20, 50)[0], w.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_adam_first_step_is_the_learning_rate():
    params, gradient = np.zeros(3, F), np.array([1e-3, -5, 100], F)
    Adam(lr=0.5).update(params, gradient, np.zeros((2, 3), F), 0.5, 1)
    np.testing.assert_allclose(params, [-0.5, 0.5, -0.5], rtol=1e-4)


@given(st.integers(1, 9), st.integers(1, 9000), st.sampled_from(list(OPTIMIZERS)), st.integers(1, 1000))
def test_fused_update_has_the_bits_of_a_sum_and_an_update(n_rows, size, name, n_samples):
    optimizer, rows = OPTIMIZERS[name], numbers(size, n_rows, size)
    params, state = numbers(1, size), np.abs(numbers(2, optimizer.n_state, size))
    new_params, new_state = np.full(size, np.nan, F), np.full((optimizer.n_state, size), np.nan, F)
    arena = held([params, new_params], [state, new_state])
    mean = compiled.elementwise.Mean(list(rows)).over(n_samples)
    update = Updater(optimizer, arena)
    update(slice(0, size), mean, 0.1, 3)
    gradient = np.empty(size, F)
    mean.into(gradient)
    params, state = params.copy(), state.copy()
    optimizer.update(params, gradient, state, 0.1, 3)
    np.testing.assert_array_equal(new_params, params)
    np.testing.assert_array_equal(new_state, state)
    assert update.first_nonfinite_step == 0
    assert update.traffic.read == (n_rows + 1 + optimizer.n_state) * size * 4


def test_numbers_are_narrowed_as_the_model_has_it():
    rng = np.random.default_rng(0)
    bits = np.concatenate([rng.integers(0, 1 << 32, 100_003, np.uint32), np.arange(1 << 12, dtype=np.uint32) << 20])
    x, half = bits.view(F), np.zeros(len(bits), np.uint16)
    compiled.elementwise.narrow(x, half)
    np.testing.assert_array_equal(half, rounded(x))
    with pytest.raises(ValueError, match="do not fit"):
        compiled.elementwise.narrow(x, half[1:])


@pytest.mark.parametrize("optimizer", [*OPTIMIZERS.values(), own.SignSGD(lr=0.1)])
@pytest.mark.parametrize("n_copies", [1, 2])
def test_update_leaves_the_new_parameters_as_bfloat16(optimizer, n_copies):
    size, lr = 70_003, 0.1
    params = [numbers(1, size) for _ in range(n_copies)]
    params_bf16 = [np.zeros(size, np.uint16) for _ in range(n_copies)]
    arena = held(params, [np.zeros((optimizer.n_state, size), F) for _ in range(n_copies)], params_bf16)
    update, plain = Updater(optimizer, arena), held([numbers(1, size)], [np.zeros((optimizer.n_state, size), F)])
    for step in (1, 2):
        for segment in (slice(0, 66_000), slice(66_000, size)):
            gradient = numbers((2, step), size)[segment]
            update(segment, gradient, lr, step)
            Updater(optimizer, plain)(segment, gradient, lr, step)
        arena.commit()
        np.testing.assert_array_equal(arena.params, plain.params)
        np.testing.assert_array_equal(arena.params_bf16, rounded(arena.params))
    arena.params[:] = numbers(5, size)
    arena.refresh_bf16()
    np.testing.assert_array_equal(arena.params_bf16, rounded(arena.params))


@pytest.mark.parametrize("nonfinite", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 2047, 2048, 4999])
def test_mean_that_is_not_finite_is_noticed(nonfinite, at):
    rows = numbers(0, 3, 5000)
    rows[1, at] = nonfinite
    update = Updater(SGD(lr=0.1), held([numbers(1, 5000)], [np.zeros((0, 5000), F)]))
    update(slice(0, 5000), compiled.elementwise.Mean([numbers(0, 5000)]), 0.1, 6)
    assert update.first_nonfinite_step == 0
    update(slice(0, 5000), compiled.elementwise.Mean(list(rows)), 0.1, 7)
    update(slice(0, 5000), compiled.elementwise.Mean(list(rows)), 0.1, 8)
    assert update.first_nonfinite_step == 7
