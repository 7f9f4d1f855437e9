"""Averages of parameters against their definitions, PyTorch's, and the same rules without an average."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe import compiled
from psframe.config.average import Average
from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena, Layout
from psframe.nn.base import Param
from psframe.optim import LAMB, LARS, SGD, Adam, Lion, Updater
from psframe.optim.average import rate

F = np.float32
#: the second tensor ends in the middle of a cache line, behind which no number is trained
LAYOUT = Layout({"0.Dense.weight": Param((70, 40), (0, 1)), "0.Dense.bias": Param((7,), (0,))})
N_STEPS = 12
OPTIMIZERS = {
    "sgd": lambda: SGD(lr=0.1),
    "momentum": lambda: SGD(lr=0.1, momentum=0.9),
    "adam": Adam,
    "lion": Lion,
    "clip_norm": lambda: SGD(lr=0.1, clip_norm=0.5),
    "lars": lambda: LARS(lr=1.0),
    "lamb": LAMB,
}


def average_of(name, decay, begin_step, every_steps):
    return Average(name=name, decay=decay, begin_step=begin_step, every_steps=every_steps)


AVERAGES = [average_of("ema", 0.7, 0, 1), average_of("swa", 0.7, 3, 2)]


class OwnSGD:
    """The same as SGD without momentum, as a user's own."""

    lr, n_state = 0.1, 1

    def update(self, params, grads, state, lr, step):
        state[0] += 1
        params -= F(lr) * grads


def trained(optimizer, average):
    """Return the parameters before, and after each update, and the state at the end."""
    allocator = Allocator()
    arena = Arena(LAYOUT, optimizer.n_state + (average is not None), allocator)
    rng = np.random.default_rng(0)
    arena.params[:] = rng.standard_normal(LAYOUT.size)
    arena.state[-1:] = arena.params if average else arena.state[-1:]
    update, seen = Updater(optimizer, arena, allocator=allocator, average=average), [arena.params.copy()]
    for step in range(1, N_STEPS + 1):
        update(slice(0, LAYOUT.size), rng.standard_normal(LAYOUT.size).astype(F), 0.1, step)
        seen.append(arena.params.copy())
    return seen, arena.state


def wanted(seen, average):
    """Return the average by its definition, in float64."""
    found = seen[0].astype(float)
    for step, params in enumerate(seen[1:], 1):
        found += rate(average, step) * (params - found)
    return found


@given(st.integers(0, 5), st.integers(1, 4), st.integers(0, 40))
def test_swa_is_the_mean_of_every_so_many(begin, every, more):
    average, taken, found = average_of("swa", 0.9, begin, every), [], np.nan
    for step in range(begin + more + 1):
        value = step * 1.5 - 7
        taken = [*taken, value] if step > begin and (step - begin) % every == 0 else taken
        taken = [value] if step <= begin else taken
        found = value if step == 0 else found + rate(average, step) * (value - found)
        assert found == pytest.approx(np.mean(taken), abs=1e-9)


def test_ema_begins_as_a_mean_and_then_forgets():
    average = average_of("ema", 0.9, 2, 1)
    assert [rate(average, step) for step in (1, 2)] == [1, 1]
    assert [rate(average, step) for step in (3, 4, 5)] == pytest.approx([1 / 2, 1 / 3, 1 / 4])
    assert [rate(average, step) for step in (11, 12, 1000)] == pytest.approx([0.1, 0.1, 0.1])
    assert rate(average_of("ema", 0.9, 0, 3), 4) == 0


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(
    "average",
    [
        average_of("ema", 0.7, 0, 1),
        average_of("swa", 0.7, 3, 2),
    ],
    ids=["ema", "swa"],
)
def test_average_stands_beside_the_same_training(name, average):
    seen, state = trained(OPTIMIZERS[name](), average)
    plain, plain_state = trained(OPTIMIZERS[name](), None)
    np.testing.assert_array_equal(seen, plain)
    np.testing.assert_array_equal(state[:-1], plain_state)
    np.testing.assert_allclose(state[-1], wanted(seen, average), rtol=1e-5, atol=1e-6)
    assert np.abs(state[-1] - seen[-1]).max() > 1e-3


def test_average_under_a_users_own_optimizer_has_the_bits_of_a_compiled_one():
    for average in (
        average_of("ema", 0.7, 0, 1),
        average_of("swa", 0.7, 3, 2),
    ):
        (ours, state), (own, own_state) = trained(SGD(lr=0.1), average), trained(OwnSGD(), average)
        trained_numbers = slice(0, LAYOUT.n_trained)
        np.testing.assert_array_equal(ours[-1][trained_numbers], own[-1][trained_numbers])
        np.testing.assert_array_equal(state[-1][trained_numbers], own_state[-1][trained_numbers])
        assert set(own_state[0][trained_numbers]) == {N_STEPS}, "the optimizer's own row is its own"


def test_new_average_leaves_the_old_one_where_a_step_has_its_own_memory():
    """And its checksums are among those of the state, of the old numbers and of the new ones."""
    rng, n = np.random.default_rng(1), 5000
    params, gradient = (rng.standard_normal(n).astype(F) for _ in range(2))
    state, new_params, new_state = np.ones((3, n), F), np.empty(n, F), np.empty((3, n), F)
    sums, rule = np.zeros(compiled.elementwise.N_SUMS, np.uint64), Adam().rule(0.01, 1)
    for share in (1.0, 0.25, 0.0):
        compiled.elementwise.Mean([gradient]).update(
            rule, params, new_params, state, new_state, sums, scratch=np.empty(n, F), rate=share
        )
        assert set(state.reshape(-1)) == {1}
        mean = new_params if share == 1 else state[2] + F(share) * (new_params - state[2])
        np.testing.assert_array_equal(new_state[2], mean)
        rows = [params, *state, new_params, *new_state]
        assert list(sums) == [compiled.elementwise.checksum(row) for row in rows]


def test_row_for_an_average_must_be_there():
    gradient, params = np.ones(8, F), np.ones(8, F)
    with pytest.raises(ValueError, match="keeps 1 numbers"):
        compiled.elementwise.Mean([gradient]).update(SGD().rule(0.1, 1), params, params, [], [], rate=0.5)


def test_averages_are_those_of_pytorch():
    torch = pytest.importorskip("torch", reason="PyTorch, the reference, is not installed")
    swa_utils = pytest.importorskip("torch.optim.swa_utils")
    for average, how in (
        (average_of("swa", 0.0, 1, 1), {}),
        # its first parameters count in full; ours do so for as long as the decay would forget faster
        (
            average_of("ema", 0.5, 1, 1),
            {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.5)},
        ),
    ):
        seen, state = trained(SGD(lr=0.1), average)
        module = torch.nn.Linear(1, LAYOUT.size, bias=False)
        reference = swa_utils.AveragedModel(module, **how)
        for params in seen[1:]:
            module.weight.data[:, 0] = torch.from_numpy(params)
            reference.update_parameters(module)
        np.testing.assert_allclose(state[-1], reference.module.weight.detach().numpy()[:, 0], rtol=1e-5, atol=1e-6)
