"""The range test of learning rates: the rates that it sets, when it ends, and the rate that it suggests."""

from math import inf, nan
from types import SimpleNamespace

import numpy as np
import pytest

from psframe.errors import UserError
from psframe.train.callbacks.learning_rate_finder import SMOOTHED, LearningRateFinder


class Run(SimpleNamespace):
    """A run as a callback sees it, which changes its rate at a pause behind every second step."""

    def __init__(self, losses):
        super().__init__(losses=losses, lr=9.0, asked=9.0, loss=None, boundaries=0, stopped=[])

    def set_lr(self, lr):
        self.asked = lr

    def stop(self, reason):
        self.stopped.append(reason)

    def train(self, callback):
        callback.on_run_begin(self)
        self.lr = self.asked
        for loss in self.losses:
            for _ in range(2):
                callback.on_step_end(self)
            self.boundaries, self.lr, self.loss = self.boundaries + 1, self.asked, loss
            if self.stopped:
                return


def test_rates_grow_by_one_factor_from_the_lowest_to_the_highest():
    finder, run = LearningRateFinder(1e-4, 1e2, steps=13), Run([0.5] * 99)
    run.train(finder)
    assert finder.rates == pytest.approx([10 ** (k / 2 - 4) for k in range(13)])
    assert finder.losses == [0.5] * 13
    assert run.stopped == ["the range test of 13 learning rates is done"]


@pytest.mark.parametrize(
    ("losses", "n_noted"),
    [
        ([1.0, 0.5, 1.9, 2.1, 0.1, 0.1], 4),  # beyond four times the smallest one
        ([1.0, 3.9, 0.9, 3.7, 0.1, 0.1], 4),
        ([1.0, 0.9, nan, 0.5, 0.5, 0.5], 3),
        ([1.0, inf, 0.9, 0.5, 0.5, 0.5], 2),
        ([1.0, 0.5, 2.0, 1.9, 1.9, 1.9, 1.9], 6),
    ],
)
def test_range_test_ends_where_the_loss_diverges(losses, n_noted):
    finder, run = LearningRateFinder(1e-3, 1.0, steps=6), Run([*losses, 0.1])
    run.train(finder)
    assert finder.losses == pytest.approx(losses[:n_noted], nan_ok=True)
    assert len(finder.rates) == n_noted
    assert run.stopped == [f"the range test of {n_noted} learning rates is done"]


def finder_with(losses, lowest=1e-5, highest=1.0):
    finder = LearningRateFinder(lowest, highest, steps=max(2, len(losses)))
    finder.rates = np.geomspace(lowest, highest, len(losses)).tolist()
    finder.losses = list(losses)
    return finder


@pytest.mark.parametrize("fastest", [1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("rise", [1e-1, 0.5])
def test_suggestion_is_the_rate_at_which_the_loss_falls_fastest(fastest, rise):
    """Of a loss that falls from 2 to 1 around one rate, and rises steeper still around a higher one."""
    at = np.log(np.geomspace(1e-5, 1.0, 101))
    losses = 1.5 - np.tanh(at - np.log(fastest)) / 2 + 3 * (1 + np.tanh(2 * (at - np.log(rise))))
    for noise in (0.0, 1e-4):
        noisy = losses + noise * np.random.default_rng(0).standard_normal(101)
        assert fastest / 1.5 < finder_with(noisy).suggestion < fastest * 1.5


def test_suggestion_is_a_rate_that_was_tried():
    for n in (SMOOTHED + 1, 20):
        finder = finder_with(np.linspace(2, 1, n))
        assert finder.suggestion in finder.rates


def test_suggestion_leaves_out_the_loss_that_diverged():
    losses = 2 - np.arange(20.0) ** 2 / 400
    for last in (nan, inf):
        found = finder_with([*losses, last], highest=2.0)
        assert found.suggestion == found.rates[17], "of losses that fall faster and faster"


def test_suggestion_needs_losses_enough():
    for n in range(SMOOTHED + 1):
        assert finder_with(np.linspace(2, 1, n)).suggestion is None
    assert finder_with([*np.linspace(2, 1, SMOOTHED), nan]).suggestion is None
    assert finder_with(np.linspace(2, 1, SMOOTHED + 1)).suggestion is not None


@pytest.mark.parametrize(
    ("lowest", "highest", "steps"), [(0, 1, 9), (-1, 1, 9), (1, 1, 9), (1, 0.5, 9), (1, inf, 9), (nan, 1, 9), (1, 2, 1)]
)
def test_range_without_rates_is_told(lowest, highest, steps):
    with pytest.raises(UserError, match="0 < lowest < highest and two steps or more"):
        LearningRateFinder(lowest, highest, steps)
