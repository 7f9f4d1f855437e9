"""Learning rates by their definitions."""

from math import cos, pi

import pytest

from psframe.config.schema import Schedule
from psframe.train.schedule import learning_rate


def rates(schedule, epochs, n_steps, global_batch=256, base_lr=0.1):
    return [
        learning_rate(schedule, base_lr, epochs, global_batch, i / n_steps, (i + 1) / n_steps)
        for i in range(epochs * n_steps)
    ]


def test_constant_rate():
    assert set(rates(Schedule(), 3, 4)) == {0.1}


def test_step_rate():
    found = rates(Schedule(name="step", step_epochs=2, gamma=0.5), 5, 2)
    assert found == pytest.approx([0.1] * 4 + [0.05] * 4 + [0.025] * 2)


def test_cosine_begins_at_the_rate_and_ends_near_0():
    found = rates(Schedule(name="cosine"), 2, 4)
    assert found == pytest.approx([0.05 * (1 + cos(pi * i / 8)) for i in range(8)])


def test_scaling_is_linear_and_warm_up_gradual():
    """Goyal et al. 2017: from lr to k lr during the first epochs, in equal steps; then k lr."""
    found = rates(Schedule(warmup_epochs=2, base_batch=64), 3, 4)
    assert found == pytest.approx([0.1 + 0.3 * (i + 1) / 8 for i in range(8)] + [0.4] * 4)


def test_warm_up_without_scaling_begins_at_0():
    assert rates(Schedule(warmup_epochs=1), 2, 4) == pytest.approx([0.025, 0.05, 0.075, 0.1] + [0.1] * 4)


def test_warm_up_of_part_of_an_epoch():
    found = rates(Schedule(warmup_epochs=0.3), 1, 4)
    assert found == pytest.approx([0.1 * 0.25 / 0.3, 0.1, 0.1, 0.1])


def test_cosine_begins_after_the_warm_up():
    found = rates(Schedule(name="cosine", warmup_epochs=1), 3, 2)
    assert found == pytest.approx([0.05, 0.1] + [0.05 * (1 + cos(pi * i / 4)) for i in range(4)])
