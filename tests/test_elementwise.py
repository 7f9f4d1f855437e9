"""Sums and updates: one order of operations, to the bit; and what they compute."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe import compiled
from psframe.optim import SGD, Adam, Updater

F = np.float32


def numbers(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(F)


@given(st.integers(1, 9), st.integers(0, 9000), st.integers(1, 10**6))
def test_the_mean_is_a_left_fold(n_rows, size, n_samples):
    rows = numbers(size, n_rows, size) * 10 ** np.arange(n_rows, dtype=F)[:, None]
    total = rows[0].copy()
    for row in rows[1:]:
        total = total + row
    out = np.full(size, np.nan, F)
    compiled.elementwise.Mean(list(rows), out)(n_samples)
    np.testing.assert_array_equal(out, total / F(n_samples))


def test_the_first_row_may_be_the_result():
    rows = numbers(0, 3, 5000)
    out = np.empty(5000, F)
    compiled.elementwise.Mean(list(rows), out)(7)
    compiled.elementwise.Mean(list(rows), rows[0])(7)
    np.testing.assert_array_equal(rows[0], out)


def test_rows_of_other_lengths_or_types_are_refused():
    out = np.empty(4, F)
    for rows in ([], [np.empty(3, F)], [np.empty(4, F), np.empty(5, F)], [np.empty(4)]):
        with pytest.raises(ValueError, match=r"row|dtype"):
            compiled.elementwise.Mean(rows, out)


def test_a_sum_keeps_its_arrays_alive():
    out = np.empty(100_000, F)
    fold = compiled.elementwise.Mean([np.ones(100_000, F) for _ in range(3)], out)
    _ = [np.full(100_000, 9, F) for _ in range(8)]
    fold(1)
    assert (out == 3).all()


OPTIMIZERS = {
    "sgd": SGD(lr=0.1),
    "decay": SGD(lr=0.1, weight_decay=0.01),
    "momentum": SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": SGD(lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": Adam(lr=0.01, weight_decay=0.1),
}


def run(optimizer, n_steps, size, cuts=()):
    params, state = numbers(1, size), np.zeros((optimizer.n_state, size), F)
    update = Updater(optimizer, params, state)
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
    else:
        reference = torch.optim.SGD([w], o.lr, o.momentum, 0, o.weight_decay, o.nesterov)
    for step in range(1, 21):
        w.grad = torch.from_numpy(numbers((2, step), 50))
        reference.step()
    np.testing.assert_allclose(run(o, 20, 50)[0], w.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_adams_first_step_is_the_learning_rate():
    params, gradient = np.zeros(3, F), np.array([1e-3, -5, 100], F)
    Adam(lr=0.5).update(params, gradient, np.zeros((2, 3), F), 0.5, 1)
    np.testing.assert_allclose(params, [-0.5, 0.5, -0.5], rtol=1e-4)
