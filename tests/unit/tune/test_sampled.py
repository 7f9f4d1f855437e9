"""Proposals by a sampler, of settings whose worth is known."""

import sys
from math import log

import pytest

from psframe.config.tuned import BATCH
from psframe.errors import UserError
from psframe.tune.proposals import MAX_TRIALS
from psframe.tune.sampled import SPAN, Sampled
from psframe.tune.way import Way
from tests.helpers.simulated import Simulated
from tests.unit.tune.test_space import origin

PLAIN = Way(4)
LR = 0.01


def made(vary=None):
    pytest.importorskip("optuna", reason="no Optuna: pip install optuna")
    return unchecked(vary or {})


def unchecked(vary):
    config = {**Simulated(None).look(PLAIN)["config"], "optimizer": {"name": "sgd", "lr": LR}}
    return Sampled(origin(config=config), PLAIN, vary)


def lr(way):
    return float(dict(way.settings).get("optimizer.lr", LR))


def walked(proposals, worth):
    """Return all that is proposed, each with its worth told."""
    ways = []
    while (way := proposals.ask()) is not None:
        ways.append(way)
        proposals.tell(worth(way))
    return ways


def far(way):
    """The worth of a rate of which the best is 7 times the config's: no combination has it."""
    return -abs(log(lr(way) / (7 * LR)))


def test_config_as_it_is_comes_first_and_there_is_an_end():
    ways = walked(made(), far)
    assert ways[0] == PLAIN
    assert len(ways) == MAX_TRIALS


def test_config_as_it_is_is_left_out_where_the_command_does_not_name_it():
    ways = walked(made({"optimizer.lr": [0.1, 0.2], BATCH: [32]}), far)
    assert sorted(map(lr, ways)) == [0.1, 0.2]


def test_same_worths_give_the_same_proposals():
    assert walked(made(), far) == walked(made(), far)
    assert walked(made(), far) != walked(made(), lambda way: -far(way))


def test_later_proposals_lie_nearer_to_the_best():
    ways = walked(made({BATCH: [32]}), far)
    assert max(map(far, ways)) > -log(1.2)
    half = MAX_TRIALS // 2
    assert sum(map(far, ways[half:])) > sum(map(far, ways[:half]))


def test_rates_are_short_numbers_within_their_range():
    for way in walked(made(), far)[1:]:
        text = dict(way.settings).get("optimizer.lr")
        if text is not None:
            assert len(text.lstrip("0.").replace(".", "").split("e")[0]) <= 3, text
            assert LR / SPAN * 0.99 <= float(text) <= LR * SPAN * 1.01


def test_values_of_the_command_are_proposed_and_no_others():
    vary = {"optimizer.lr": [0.005, LR], BATCH: [32, 64], "sync.backup": [{"workers": 1}, 0]}
    ways = walked(made(vary), far)
    assert {lr(way) for way in ways} == {0.005, LR}
    assert {way.batch_size for way in ways} == {None, 64}
    assert len(set(ways)) == len(ways) == 8, "each once, and all of so few"
    assert len({dict(way.settings).get("sync.backup") for way in ways}) == 2


def test_settings_that_fail_are_avoided():
    ways = walked(made({BATCH: [32]}), lambda way: float("-inf") if lr(way) > LR else far(way))
    late = [lr(way) > LR for way in ways[MAX_TRIALS // 2 :]]
    assert sum(late) < len(late) / 2


def test_search_without_optuna_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match="--sampler tpe needs Optuna, got none; pip install"):
        unchecked({})
