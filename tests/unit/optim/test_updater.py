"""Updates by a user's own optimizer, in every cut: trained tensors, running statistics, and what is not finite."""

from functools import partial

import numpy as np
import pytest

from psframe import compiled
from psframe.config.average import Average
from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena, Keeping, Layout
from psframe.memory.checksums import Checksums
from psframe.nn.base import Param
from psframe.optim import LARS, SGD, Updater
from psframe.optim.updater import BLOCK
from tests.helpers.bfloat16_model import rounded

F = np.float32
CUTS = ("anywhere", "tensors", "nowhere")
LAYOUT = Layout(
    {
        "0.Dense.weight": Param((300, 220), (0, 1)),
        "0.Dense.bias": Param((70,), (0,)),
        "1.BatchNorm2d.mean": Param((33,), (0,), trained=False),
        "1.BatchNorm2d.variance": Param((33,), (0,), trained=False),
    }
)
SLOTS = LAYOUT.slots
WHOLE, TRAINED = slice(0, LAYOUT.size), slice(0, LAYOUT.n_trained)
LR = 0.1


class Own:
    """Momentum as a user's own optimizer, which overwrites the gradient that it is given, and keeps their lengths."""

    lr, n_state = LR, 1

    def __init__(self, cuts):
        self.cuts, self.lengths = cuts, []

    def update(self, params, grads, state, lr, step):
        self.lengths.append(len(grads))
        state[0] = F(0.5) * state[0] + grads
        grads[:] = F(lr) * state[0]
        params -= grads


def vector(seed):
    """Return numbers of every tensor, and zeros between them."""
    found = np.zeros(LAYOUT.size, F)
    for slot in SLOTS.values():
        slot.view(found)[:] = np.random.default_rng((seed, slot.start)).standard_normal(slot.shape)
    return found


def begun(optimizer, average=None, keeping=None):
    arena = Arena(LAYOUT, optimizer.n_state + (average is not None), Allocator(), keeping=keeping or Keeping())
    arena.params[:] = vector(1)
    if average:
        arena.state[-1] = arena.params
    return arena


def test_layout_is_more_than_a_block_of_which_the_last_has_statistics():
    assert BLOCK < SLOTS["0.Dense.weight"].stop < LAYOUT.n_trained < LAYOUT.size < 2 * BLOCK


@pytest.mark.parametrize("average", [None, Average(name="ema", decay=0.5)])
@pytest.mark.parametrize("n_copies", [1, 2])
@pytest.mark.parametrize("cuts", CUTS)
def test_own_optimizer_updates_all_that_is_trained_and_statistics_lose_the_gradient_itself(cuts, n_copies, average):
    """Gaps stay as they are, and an average, parameters in bfloat16 and checksums follow."""
    arena = begun(Own(cuts), average, Keeping(n_copies, bfloat16=True))
    sums = Checksums(arena)
    update = Updater(Own(cuts), arena, sums, average=average)
    params, velocity, mean = vector(1), np.zeros(LAYOUT.size, F), vector(1)
    for step in (1, 2, 3):
        update(WHOLE, compiled.elementwise.Mean([vector(2), vector(10 + step)]).over(2), LR, step)
        arena.commit()
        gradient = (vector(2) + vector(10 + step)) / F(2)
        velocity[TRAINED] = F(0.5) * velocity[TRAINED] + gradient[TRAINED]
        params[TRAINED] -= F(LR) * velocity[TRAINED]
        params[LAYOUT.n_trained :] -= gradient[LAYOUT.n_trained :]
        mean += F(0.5) * (params - mean)
        np.testing.assert_array_equal(arena.params, params)
        np.testing.assert_array_equal(arena.state, [velocity, mean] if average else [velocity])
        np.testing.assert_array_equal(arena.params_bf16, rounded(params))
        assert sums.hold()
    assert not update.take_damage()
    assert update.first_nonfinite_step == 0


@pytest.mark.parametrize("cuts", CUTS)
def test_own_optimizer_is_given_blocks_or_tensors_or_all_that_is_trained(cuts):
    optimizer = Own(cuts)
    Updater(optimizer, begun(optimizer))(WHOLE, vector(2), LR, 1)
    n = LAYOUT.n_trained
    assert optimizer.lengths == {"anywhere": [BLOCK, n - BLOCK], "tensors": [66000, 70], "nowhere": [n]}[cuts]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("make", [*(partial(Own, cuts) for cuts in CUTS), SGD, LARS, partial(SGD, clip_norm=1.0)])
def test_first_step_that_is_not_finite_is_noticed_wherever_it_is_not(make, value):
    """Also before a finite one, and where only one number of many is none, of a tensor or of statistics."""
    ends = [place for slot in SLOTS.values() for place in (slot.start, slot.stop - 1)]
    for place in (*ends, BLOCK - 1, BLOCK):
        optimizer = make()
        arena = begun(optimizer, keeping=Keeping(2, drops_unsound=True))
        update, gradient = Updater(optimizer, arena), vector(2)
        update(WHOLE, gradient, LR, 1)
        assert (update.first_nonfinite_step, arena.nonfinite) == (0, False)
        arena.commit()
        gradient[place] = value
        update(WHOLE, gradient, LR, 2)
        assert (update.first_nonfinite_step, arena.nonfinite) == (2, True), place
        update(WHOLE, vector(2), LR, 3)
        update(WHOLE, gradient, LR, 4)
        assert update.first_nonfinite_step == 2, place
