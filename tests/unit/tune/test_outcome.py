"""Words on a race's outcome: the phases in which a way is slower or faster than the best."""

import pytest

from psframe.tune.outcome import PHASES, lost_by
from psframe.tune.race import Entry
from psframe.tune.way import Way

#: seconds of a phase in three rounds, whose medians are 1, 10, 2 and 4, and of all: 20
BEST = {"data": [1.0, 1.0, 1.0], "compute": [9.0, 10.0, 90.0], "wait": [2.0, 2.0, 0.0], "exchange": [3.0, 4.0, 5.0]}


def entry(seconds, phases):
    return Entry(Way(2), seconds=dict(enumerate(seconds, 1)), phases=phases)


def best():
    return entry([18.0, 20.0, 95.0], BEST)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"exchange": [9.0, 8.0, 50.0]}, "exchange and update +25 %"),
        ({"compute": [8.0, 8.0, 8.0]}, "computing -10 %"),
        ({"wait": [4.0] * 3, "data": [0.0] * 3}, "loading -5 %, waiting for others +10 %"),
        ({"data": [1.09] * 3}, ""),  # less than half of a percent
        ({"data": [1.11] * 3}, "loading +1 %"),
        ({"data": [0.89] * 3}, "loading -1 %"),
    ],
)
def test_loss_of_a_rival_is_told_by_phase_in_shares_of_the_best_ways_time(changes, words):
    assert lost_by(entry([60.0], {**BEST, **changes}), best()) == words


@pytest.mark.parametrize("phase", PHASES)
def test_phase_that_takes_longer_has_a_plus_and_from_the_other_side_a_minus(phase):
    seconds = [20.0] * 3
    slower = entry(seconds, {**BEST, phase: [t + 2 for t in BEST[phase]]})
    assert lost_by(slower, entry(seconds, BEST)) == f"{PHASES[phase]} +10 %"
    assert lost_by(entry(seconds, BEST), slower) == f"{PHASES[phase]} -10 %"


def test_phase_that_one_of_the_ways_has_not_is_not_told():
    some = {"compute": [20.0] * 3}
    assert lost_by(entry([60.0], some), best()) == "computing +50 %"
    assert lost_by(best(), entry([20.0], some)) == "computing -50 %"
    assert lost_by(entry([60.0], {}), best()) == ""
