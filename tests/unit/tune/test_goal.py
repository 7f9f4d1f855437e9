"""Searches for a target, over trials whose curves are known."""

from math import exp, log

import pytest

from psframe.errors import UserError
from psframe.tune.goal import RUNGS, SEEDS, GoalSearch, OutOfTime, text
from psframe.tune.proposals import MAX_TRIALS, Combinations
from psframe.tune.sampled import Sampled
from psframe.tune.way import BATCH, Way
from tests.helpers.simulated import Simulated
from tests.unit.tune.test_space import origin

EPOCH_S, EPOCHS = 2.0, 30
PLAIN = Way(8).having("affinity", "none")


def speed(way):
    """How fast a way learns: the best rate is 0.02, smaller batches help, and a rate of 0.04 diverges."""
    lr = float(dict(way.settings).get("optimizer.lr", 0.01))
    if lr >= 0.04:
        raise UserError("the loss must stay finite")
    return {0.005: 0.6, 0.01: 1.0, 0.02: 2.0}.get(lr, 0.1) * 32 / (way.batch_size or 32)


class Trained:
    """Trials that train in no time, with the seconds that each has trained."""

    def __init__(self, speed=speed):
        self.speed, self.asked = speed, []

    def __call__(self, trial, seconds):
        self.asked.append((trial.number, trial.way, trial.seed, seconds))
        noise = 1 + 0.02 * (trial.seed or 0)
        rate, curve = self.speed(trial.way) * noise, []
        for epoch in range(1, EPOCHS + 1):
            curve.append((EPOCH_S * epoch, 1 - exp(-0.1 * rate * epoch)))
            if curve[-1][1] >= 0.5 or curve[-1][0] >= seconds:
                break
        return curve


def search(vary=None, target=0.5, left_s=lambda: 1e9, train=None, proposals=Combinations, **changes):
    config = {**Simulated(None).look(PLAIN)["config"], "optimizer": {"name": "sgd", "lr": 0.01}, **changes}
    trained = train or Trained()
    proposed = proposals(origin(config=config), PLAIN, vary or {})
    return GoalSearch(proposed, target, within(trained, left_s), lambda line: None).run(), trained


def within(train, left_s=lambda: 1e9):
    """Return trials that a budget stops."""

    def trained(trial, seconds):
        if (left := left_s()) <= 0:
            raise OutOfTime
        curve = train(trial, min(seconds, trial.seconds + left))
        return curve, trial.seconds + left < seconds and curve[-1][0] >= trial.seconds + left

    return trained


def test_settings_that_reach_the_target_first_win():
    found, _ = search()
    assert dict(found.best.settings) == {"affinity": "none", "optimizer.lr": "0.02"}
    assert found.best.batch_size == 16
    assert len(found.seconds[found.best]) == 1 + len(SEEDS)
    assert found.plain in found.seconds, "the config itself is repeated, too"
    assert "accuracy 0.5, by seed" in text(found, "accuracy 0.5")


def test_trial_that_diverges_is_out_with_its_reason():
    found, _ = search()
    failed = [trial for trial in found.trials if trial.failed]
    assert failed
    assert all(dict(trial.way.settings)["optimizer.lr"] == "0.04" for trial in failed)
    assert "the loss must stay finite" in text(found, "accuracy 0.5")


def test_worse_half_leaves_and_nobody_trains_longer_than_the_fastest():
    found, trained = search()
    first_s = found.trials[0].seconds
    others = [row for row in trained.asked if row[0] > 1 and row[2] is None]
    by_rung = [len({row[0] for row in others if row[3] <= share * first_s * 1.001}) for share in RUNGS]
    n_once = len({row[0] for row in others})
    for_long = {row[0] for row in others if row[3] > RUNGS[0] * first_s}
    assert by_rung[0] == n_once
    assert len(for_long) <= n_once // 2 + 1
    assert all(row[3] <= first_s for row in others)


def test_values_of_the_command_are_tried_and_no_others():
    found, _ = search(vary={"optimizer.lr": [0.005, 0.01], BATCH: [32], "sync.mode": ["sync_ps", "allreduce"]})
    tried = {tuple(sorted(trial.way.settings)) for trial in found.trials}
    assert len(tried) == 4
    assert {trial.way.batch_size for trial in found.trials} == {None}


def test_many_combinations_are_drawn_at_random_but_always_the_same():
    vary = {"optimizer.lr": [0.001 * n for n in range(1, 20)], "optimizer.momentum": [0.1 * n for n in range(10)]}
    (one, _), (other, _) = search(vary=vary), search(vary=vary)
    assert [t.way for t in one.trials] == [t.way for t in other.trials]
    assert len({t.way for t in one.trials}) <= MAX_TRIALS + 1


def test_config_that_never_reaches_the_target_gives_its_seconds():
    found, trained = search(vary={"optimizer.lr": [0.005, 0.02], BATCH: [32]}, target=0.99)
    assert all(row[3] <= EPOCH_S * EPOCHS for row in trained.asked if row[2] is None and row[0] > 1)
    assert found.best == found.plain
    assert "not reached" in text(found, "accuracy 0.99")


def test_config_that_fails_is_an_error():
    def fail(trial, seconds):
        raise UserError("no room")

    with pytest.raises(UserError, match="no room"):
        search(train=fail)


def test_budget_ends_the_search_with_what_it_has():
    left = iter([1.0] * 4)
    found, _ = search(left_s=lambda: next(left, 0.0))
    assert len([trial for trial in found.trials if trial.curve]) == 4
    assert "the budget has ended the search" in text(found, "accuracy 0.5")


def test_seed_that_the_budget_stops_tells_nothing():
    """It might have reached the target, in the time that the config itself was given."""
    found, _ = search(vary={"optimizer.lr": [0.02], BATCH: [32]})
    n_before = len([trial for trial in found.trials if trial.seed is None])
    left = iter([1e9] * (n_before + 2))
    found, _ = search(vary={"optimizer.lr": [0.02], BATCH: [32]}, left_s=lambda: next(left, 3.0))
    assert any(trial.is_cut for trial in found.trials)
    assert all(s is not None for s in found.seconds[found.best])
    assert found.best != found.plain


@pytest.mark.parametrize("proposals", [Combinations, Sampled])
def test_epoch_longer_than_a_rung_counts_as_it_ends(proposals):
    """The config takes three epochs to its target; a trial of a quarter of that ends one, in which it may be there."""
    if proposals is Sampled:
        pytest.importorskip("optuna", reason="no Optuna: pip install optuna")
    told, wanted = [], {0.005: 0.1, 0.01: 0.2, 0.02: 0.6, 0.04: 0.3}

    class Watched(proposals):
        def tell(self, worth):
            told.append(worth)
            super().tell(worth)

    def train(trial, seconds):
        gain = wanted[float(dict(trial.way.settings).get("optimizer.lr", 0.01))]
        n_epochs = next(n for n in range(1, 9) if EPOCH_S * n >= seconds or gain * n >= 0.5)
        return [(EPOCH_S * n, gain * n) for n in range(1, n_epochs + 1)]

    found, _ = search(vary={BATCH: [32], "optimizer.lr": [*wanted]}, train=train, proposals=Watched)
    assert dict(found.best.settings)["optimizer.lr"] == "0.02"
    assert min(told) >= 0.1
    assert sorted({*told})[-1] > 0.5 > sorted({*told})[-2], "the one that was there is the best"


def test_seeds_that_overlap_are_told():
    def noisy(trial, seconds):
        hurry = 2 if trial.seed == 1 and trial.way == PLAIN else 1
        curve = Trained()(trial, seconds)
        return [(s / hurry, value) for s, value in curve]

    found, _ = search(vary={"optimizer.lr": [0.012], BATCH: [32]}, train=noisy)
    assert ("overlap" in text(found, "accuracy 0.5")) == (found.best != found.plain)


def test_setting_whose_seeds_diverge_does_not_win_by_a_lucky_one():
    def lucky(trial, seconds):
        if trial.seed is not None and dict(trial.way.settings).get("optimizer.lr") == "0.02":
            raise UserError("the loss must stay finite")
        return Trained()(trial, seconds)

    found, _ = search(vary={BATCH: [32]}, train=lucky)
    assert dict(found.best.settings).get("optimizer.lr") != "0.02"
    fast = next(way for way in found.seconds if dict(way.settings).get("optimizer.lr") == "0.02")
    assert found.seconds[fast][1:] == [None] * len(SEEDS)


def test_batch_of_a_worker_is_left_alone_where_there_is_none():
    section = {"threads": "auto", "reproducible": "any_workers", "global_batch": 256}
    config = {**Simulated(None).look(PLAIN)["config"], "optimizer": {"name": "sgd", "lr": 0.01}, "train": section}
    proposed = Combinations(origin(config=config), PLAIN, {})
    found = GoalSearch(proposed, 0.5, within(Trained()), lambda line: None).run()
    assert {trial.way.batch_size for trial in found.trials} == {None}


def test_sampler_finds_a_rate_that_no_combination_has():
    pytest.importorskip("optuna", reason="no Optuna: pip install optuna")

    def smooth(way):
        """How fast a way learns: the best rate is eight times the config's."""
        return exp(-(log(float(dict(way.settings).get("optimizer.lr", 0.01)) / 0.08) ** 2) / 4)

    found, _ = search(vary={BATCH: [32]}, train=Trained(smooth), proposals=Sampled)
    assert 0.045 <= float(dict(found.best.settings)["optimizer.lr"]) <= 0.1
    assert len(found.trials) <= MAX_TRIALS + len(SEEDS) * 4
