"""Races among ways whose true seconds are known."""

from math import exp
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe.errors import UserError
from psframe.tune.intervals import interval
from psframe.tune.race import HOPELESS, PROBE_STEPS, Entry, Race
from psframe.tune.way import Way
from tests.helpers.simulated import Simulated

WAYS = [Way(2).having("train.threads", number) for number in range(1, 25)]


def race(step_s, ways=WAYS, budget_s=600.0, n_rounds=16, keep=1, **keys):
    machine = Simulated(lambda way: step_s[way], **keys)
    raced = Race(machine.train, machine.drop, lambda: budget_s - machine.now_s)
    return raced, raced.run(ways, n_rounds, keep), machine


def drawn(seed):
    """Return steps of which some are nearly equal, and others far slower."""
    random = Random(seed)
    return {way: 0.01 * exp(abs(random.gauss(0, 0.4))) for way in WAYS}


@pytest.mark.parametrize("neighbour", [False, True])
def test_race_finds_a_way_within_5_percent_at_a_fraction_of_the_steps(neighbour):
    good, spent_s, grids_s = 0, 0.0, 0.0
    for seed in range(40):
        step_s = drawn(seed)
        _, found, machine = race(step_s, seed=seed, neighbour=neighbour, noise=0.05)
        good += step_s[found[0].way] <= 1.05 * min(step_s.values())
        spent_s += machine.now_s
        grids_s += sum(3 * 60000 / 64 * seconds for seconds in step_s.values())  # three epochs of each
    assert good >= 36, f"{good} of 40"
    assert spent_s < 0.15 * grids_s


def test_hopeless_way_leaves_after_its_probes():
    step_s = dict.fromkeys(WAYS[:4], 0.01) | {WAYS[3]: 0.05}
    raced, _, machine = race(step_s, WAYS[:4], noise=0.01)
    assert 1 + PROBE_STEPS < machine.steps[WAYS[3]] < 12, "a probe that was disturbed has a second chance, not a race"
    assert WAYS[3] in machine.dropped
    assert raced.entries[WAYS[3]].middle > HOPELESS * raced.entries[WAYS[0]].middle
    assert raced.ratio(WAYS[3], WAYS[0]) is None, "it was in no round"


def test_way_that_never_leaves_is_in_every_round():
    step_s = {WAYS[0]: 0.01, WAYS[1]: 0.04}
    machine = Simulated(lambda way: step_s[way])
    raced = Race(machine.train, machine.drop, lambda: 600 - machine.now_s)
    raced.run([WAYS[0]], 6, 1, always=[WAYS[1]])
    ratio = raced.ratio(WAYS[1], WAYS[0])
    assert ratio.n == 6
    assert ratio.low > 3


def test_way_that_fails_is_out_with_its_reason():
    step_s = dict.fromkeys(WAYS[:3], 0.01)
    raced, found, _ = race(step_s, WAYS[:3], refused={WAYS[1]: "there is no room"})
    assert raced.entries[WAYS[1]].failed == "there is no room"
    assert WAYS[1] not in [entry.way for entry in found]


def test_budget_ends_the_race():
    step_s = dict.fromkeys(WAYS, 0.01)
    raced, found, machine = race(step_s, budget_s=8.0, n_rounds=100)
    assert raced.out_of_time
    assert found
    assert machine.now_s < 8.0 + 24 * 0.3, "it ends with the round"


def test_race_is_the_same_for_the_same_replies():
    orders = []
    for _ in range(2):
        _, found, machine = race(drawn(3), seed=3)
        orders.append(([entry.way for entry in found], dict(machine.steps)))
    assert orders[0] == orders[1]


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=60))
def test_interval_lies_around_its_median(logs):
    found = interval(logs)
    assert found.low <= found.middle <= found.high
    assert found.n == len(logs)
    assert exp(min(logs)) <= found.low * (1 + 1e-12)
    assert found.high <= exp(max(logs)) * (1 + 1e-12)


@pytest.mark.parametrize("n", [6, 9, 12, 20, 45])
def test_interval_misses_the_true_median_once_in_twenty_at_most(n):
    """Of lognormal ratios with heavy disturbances, whose median is 1."""
    random, missed = Random(n), 0
    for _ in range(2000):
        logs = [random.gauss(0, 1) * (1 if random.random() < 0.7 else 20) for _ in range(n)]
        found = interval(logs)
        missed += not found.low <= 1.0 <= found.high
    assert missed / 2000 < 0.05 + 0.015


def test_interval_narrows_with_rounds():
    random = Random(1)
    logs = [random.gauss(0, 0.1) for _ in range(100)]
    widths = [interval(logs[:n]).high - interval(logs[:n]).low for n in (6, 20, 100)]
    assert widths == sorted(widths, reverse=True)
    assert widths[2] < widths[0] / 2


def test_way_that_joins_late_is_judged_by_the_rounds_since():
    """The machine has become slower by then: seconds of earlier rounds would be better for all the others."""
    machine = Simulated(lambda way: 0.01 * (1.0 if machine.now_s < 10 else 1.5) * (0.9 if way == WAYS[3] else 1.0))
    raced = Race(machine.train, machine.drop, lambda: 600 - machine.now_s)
    first = raced.run(WAYS[:3], 8, 3)
    machine.now_s = max(machine.now_s, 10.0)
    found = raced.run([*(entry.way for entry in first), WAYS[3]], 8, 1)
    assert found[0].way == WAYS[3]


def test_race_without_time_for_a_round_goes_by_the_probes():
    step_s = dict(zip(WAYS[:3], (0.01, 0.005, 0.02), strict=True))
    raced, found, _ = race(step_s, WAYS[:3], budget_s=0.3, noise=0.0)
    assert raced.out_of_time
    assert found[0].way == WAYS[1]


def test_failure_in_a_later_stretch_ends_that_way_alone():
    step_s = dict.fromkeys(WAYS[:3], 0.01)
    machine = Simulated(lambda way: step_s[way])

    def train(way, n_steps):
        if way == WAYS[1] and machine.steps[way] > 30:
            raise UserError("a rank has died", "with a table")
        return machine.train(way, n_steps)

    raced = Race(train, machine.drop, lambda: 600 - machine.now_s)
    found = raced.run(WAYS[:3], 6, 3)
    assert {entry.way for entry in found} == {WAYS[0], WAYS[2]}
    assert raced.entries[WAYS[1]].failed == "a rank has died"
    assert WAYS[1] in machine.dropped


def test_way_that_spares_a_core_is_no_equal_of_one_that_a_neighbour_halves():
    """One stays at 1.7 times the seconds; the other has a half of the machine for most of the time."""
    machine = Simulated(
        lambda way: 0.017 if way == WAYS[0] else 0.01 * (1 if machine.now_s % 4 < 1.5 else 2), noise=0.01
    )
    raced = Race(machine.train, machine.drop, lambda: 600 - machine.now_s)
    found = raced.run(WAYS[:2], 16, 2, always=WAYS[:2])
    assert raced.ratio(WAYS[0], WAYS[1]).low < 1.0
    assert found[0].way == WAYS[1]
    assert not raced.is_equal(WAYS[0], WAYS[1])


def test_way_that_most_rounds_find_faster_is_an_equal_of_the_winner():
    """Though the winner's least disturbed rounds were shorter: noise alone parts them."""
    raced = Race(lambda *_: {}, lambda _: None, lambda: 0.0)
    config, winner = (Entry(way) for way in WAYS[:2])
    config.seconds = dict(enumerate([1.0, 1.0, 1.0, 1.1, 1.0, 1.0, 1.0, 1.2], 1))
    winner.seconds = dict(enumerate([0.8, 0.7, 1.2, 1.3, 1.4, 1.5, 1.3, 1.4], 1))
    raced.entries = {entry.way: entry for entry in (config, winner)}
    assert raced.ratio(config.way, winner.way).middle < 1 < raced.ratio(config.way, winner.way).high
    assert raced.is_equal(config.way, winner.way)
