"""Simulated and real runs stand side by side."""

import pytest

from psframe.predict.machine import Check
from psframe.virtual.check import apart, told


def records(seconds, staleness, accuracy=0.5, **other):
    """Return a run whose first epoch, which does not count, is like no other."""
    facts = {"model": "lenet", "batch_size": 32, "sync_mode": "async_ps", "server": "dedicated", "collective": None}
    facts |= {"store": "window", "n_ranks": 4, "n_nodes": 2, "accuracy": accuracy, **other}
    first = {**facts, "epoch_s": 1e3, "staleness": {"999": 7}}
    return [first, *({**facts, "epoch_s": s, "staleness": staleness} for s in seconds)]


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [
        ({"0": 3, "1": 1}, {"0": 30, "1": 10}, 0),
        ({"0": 4}, {"1": 9}, 1),
        ({"0": 3, "1": 1}, {"0": 1, "2": 3}, 0.75),
        ({}, {}, 0),
    ],
)
def test_distance_of_distributions(a, b, distance):
    assert apart(records([1.0], a), records([2.0, 2.0], b)) == pytest.approx(distance)


def test_row_and_what_the_profile_keeps():
    keys = ["train.epochs=4", "sync.mode=async_ps", "sync={mode: async_ps, staleness: 2}"]
    table, kept = told([(records([1.0, 3.0, 1.1], {"0": 1}), records([2.0, 1.0, 2.0], {"0": 1}, 0.52), keys)])
    assert kept == [Check(f"lenet, batch 32, async_ps dedicated window {keys[2].replace(', ', ',')}", 4, 1.1, 2.0, 2)]
    _, row = table.splitlines()
    assert row.split()[-7:] == ["4", "2", "1.1", "2", "-45%", "0.00", "-0.020"]


def test_accuracy_that_was_not_measured():
    table, _ = told([(records([1.0], {}, None), records([1.0], {}, None), [])])
    assert table.split()[-1] == "-"
