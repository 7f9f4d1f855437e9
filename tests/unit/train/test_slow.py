"""Ranks that are slow on purpose: who sleeps, how often and for how long; no test waits for it."""

import pytest

from psframe.config.schema import Fault
from psframe.record.clock import CLOCK
from psframe.train.faults import injection


@pytest.fixture
def slept(monkeypatch):
    seconds = []
    monkeypatch.setattr(CLOCK, "sleep", seconds.append)
    return seconds


@pytest.mark.parametrize(("slow_rank", "sleeps"), [(1, True), ("all", True), (2, False), ("none", False)])
def test_slow_rank_sleeps_for_so_many_steps(slow_rank, sleeps, slept):
    injection.Slow(Fault(slow_rank=slow_rank, slow_steps=3), rank=1, seed=0).pause(0.25)
    assert slept == [0.75] * sleeps


def test_slow_rank_sleeps_in_a_share_of_its_steps(slept):
    slow = injection.Slow(Fault(slow_rank=1, slow_share=0.1), rank=1, seed=0)
    for _ in range(1000):
        slow.pause(0.25)
    assert set(slept) == {4 * 0.25}
    assert 50 < len(slept) < 200
