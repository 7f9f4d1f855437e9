"""Searches on a machine whose steps are known: what they may change, and what they say."""

import pytest

from psframe.errors import UserError
from psframe.tune.search import Request, Search
from psframe.tune.way import Way
from tests.helpers.simulated import Simulated

BASE_S = 0.01


def step_s(way):
    """Seconds of a step: each core that is not used costs, and so do ranks beyond the cores, buffers, and a server."""
    settings = dict(way.settings)
    batch = way.batch_size or 32
    seconds = BASE_S * batch / 32
    if way.n_ranks > 8:
        seconds *= 1.6
    if settings.get("collective.name") == "buffer":
        seconds += BASE_S / 4
    if settings.get("affinity") == "none":
        seconds *= 1.1
    if settings.get("collective.reducers") == "server":
        seconds += BASE_S / 4
    return seconds


def dedicated(way):
    served = dict(way.settings).get("sync.server", "dedicated") == "dedicated"
    return max(1, way.n_ranks - served)


def search(ranks=(8,), vary=None, first=None, budget_s=600.0, **keys):
    machine = Simulated(keys.pop("step_s", step_s), **{"n_workers": dedicated, **keys})
    made = Search(
        Request(list(ranks), vary or {}), first or ranks[0], machine.ask, machine.drop,
        lambda: budget_s - machine.now_s, lambda text: None,
    )  # fmt: skip
    made.look()
    return made, made.run(), machine


def test_global_batch_stays_whatever_the_ranks():
    made, outcome, _ = search(ranks=(5, 8, 3))
    for entry in made.race.entries.values():
        assert dedicated(entry.way) * (entry.way.batch_size or 32) == 4 * 32
    assert outcome.best.way == Way(8).having("sync.server", "colocated").but(batch_size=16)


def test_ranks_that_cannot_divide_the_batch_are_left_out_and_counted():
    made, _, _ = search(ranks=(5, 8))
    assert sum(made.left_out.values()) > 0
    assert all("128 samples of a step" in why for why in made.left_out)
    assert not [way for way in made.race.entries if dedicated(way) == 7]


def test_what_the_user_has_set_stays():
    made, outcome, _ = search(origin={"set_keys": ["sync.server", "collective.name", "affinity"]})
    touched = {key for way in made.race.entries for key, _ in way.settings}
    assert touched == {"collective.reducers"}
    assert outcome.best.way == made.plain


def test_key_that_is_opened_is_tried_though_the_user_has_set_it():
    made, _, _ = search(vary={"affinity": None}, origin={"set_keys": ["affinity"]})
    assert {value for way in made.race.entries for key, value in way.settings if key == "affinity"} == {
        "compact",
        "none",
    }


def test_key_that_is_narrowed_has_those_values_alone():
    made, _, _ = search(vary={"collective.name": ["buffer"], "affinity": ["none"]})
    values = {pair for way in made.race.entries for pair in way.settings}
    assert {value for key, value in values if key in ("affinity", "collective.name")} == {"none", "buffer"}


@pytest.mark.parametrize("origin", [{"same_each_step": False}, {"own_statistics": True}])
def test_number_of_workers_stays_where_it_changes_what_is_trained(origin):
    made, _, _ = search(ranks=(5, 8, 9), origin=origin)
    assert {dedicated(way) for way in made.race.entries} == {4}
    assert any("trains otherwise" in why for why in made.left_out)


def test_config_that_cannot_be_trained_is_an_error():
    with pytest.raises(UserError, match="too little memory"):
        search(refused={Way(8): "too little memory"})


def test_config_as_it_is_is_best_where_nothing_is_faster():
    made, outcome, _ = search(
        ranks=(9,), step_s=lambda way: BASE_S * (way.batch_size or 32) / 32 * 1.2 ** len(way.settings)
    )
    assert outcome.best.way == made.plain
    assert outcome.plain is None


def test_fewest_settings_win_among_equals():
    made, outcome, _ = search(
        ranks=(9,), step_s=lambda way: BASE_S * (way.batch_size or 32) / 32, n_workers=lambda way: 8
    )
    assert outcome.best.way == made.plain
    assert outcome.equals, "noise alone parts them, and the command says so"


def test_worth_of_each_setting_is_measured():
    def seconds(way):
        settings = dict(way.settings)
        return (
            BASE_S
            * (1 if settings.get("affinity") == "compact" else 1.2)
            * (1 if settings.get("collective.name") == "buffer" else 1.5)
        )

    _, outcome, _ = search(ranks=(9,), step_s=seconds, n_workers=lambda way: 8)
    assert dict(outcome.best.way.settings) == {"affinity": "compact", "collective.name": "buffer"}
    worth = {effect.key: effect.ratio for effect in outcome.effects}
    assert worth["affinity"].low <= 1.2 <= worth["affinity"].high * 1.02
    assert worth["collective.name"].middle == pytest.approx(1.5, rel=0.05)
    assert outcome.plain.middle == pytest.approx(1.8, rel=0.05)
    assert outcome.runner_up


def test_combination_of_fine_settings_that_help_is_tried():
    def seconds(way):
        settings = dict(way.settings)
        fast = 0.9 ** ((settings.get("affinity") == "none") + (settings.get("collective.reducers") == "all"))
        return BASE_S * fast

    _, outcome, _ = search(ranks=(9,), step_s=seconds, n_workers=lambda way: 8)
    assert dict(outcome.best.way.settings) == {"affinity": "none", "collective.reducers": "all"}


def test_budget_that_is_too_small_for_a_step_is_told():
    with pytest.raises(UserError, match="--budget"):
        search(budget_s=0.0)


def test_default_ranks_are_those_of_the_cores():
    made, _, _ = search(ranks=(), first=8, n_workers=dedicated, origin={"n_workers": 8, "global_batch": 256})
    assert {way.n_ranks for way in made.race.entries} <= {2, 3, 4, 5, 8, 9}
    assert {4, 5, 8, 9} <= {way.n_ranks for way in made.race.entries}


def test_way_that_the_model_expects_to_be_far_slower_is_not_raced():
    machine = Simulated(step_s, n_workers=dedicated)
    slow = Way(8).having("collective.name", "buffer")
    made = Search(
        Request([8], {}), 8, machine.ask, machine.drop, lambda: 600.0, lambda text: None,
        lambda way: 10.0 if way == slow else 1.0 if not way.settings else None,
    )  # fmt: skip
    made.look()
    made.run()
    assert slow not in made.race.entries
    assert any("expects over 3 times" in why for why in made.left_out)
    assert len(made.race.entries) > 3, "a way that the model does not know is raced"


def test_setting_that_is_worth_nothing_in_the_end_is_left_out():
    """What looked faster by luck races once more without each setting."""
    _, outcome, _ = search(
        ranks=(9,),
        step_s=lambda way: (
            BASE_S * 0.8 ** (way.n_ranks == 9) * (0.7 if dict(way.settings).get("affinity") == "none" else 1.0)
        ),
        n_workers=lambda way: 8,
        noise=0.04,
    )
    assert dict(outcome.best.way.settings) == {"affinity": "none"}


def test_mode_that_is_varied_keeps_its_workers_if_they_matter():
    class Modes(Simulated):
        def workers(self, way, *ways):
            found = super().workers(way, *ways)["found"]
            asynchronous = ["sync.mode=async_ps" in overrides for overrides, _ in ways]
            return {"found": [(n, not free) for (n, _), free in zip(found, asynchronous, strict=True)]}

    machine = Modes(step_s, n_workers=dedicated)
    vary = {"sync.mode": ["sync_ps", "async_ps"]}
    made = Search(Request([5, 8], vary), 5, machine.ask, machine.drop, lambda: 600.0, lambda text: None)
    made.look()
    made.run()
    free = [way for way in made.race.entries if dict(way.settings).get("sync.mode") == "async_ps"]
    assert free
    assert {dedicated(way) for way in free} == {4}


@pytest.mark.parametrize("budget_s", [3.0, 6.0, 12.0, 25.0])
def test_way_that_there_was_no_time_to_compare_is_not_recommended(budget_s):
    """Steps are long, and probes of all ways would take the budget."""
    made, outcome, machine = search(
        ranks=(9, 8), step_s=lambda way: 0.3 * (way.batch_size or 32) / 32, budget_s=budget_s
    )
    assert made.race.out_of_time
    if outcome.best.way != made.plain:
        assert made.race.ratio(made.plain, outcome.best.way).n >= 3
    assert machine.now_s < 1.5 * budget_s + 3


def test_gain_of_less_than_a_per_cent_is_not_worth_a_setting():
    def seconds(way):
        return BASE_S * (0.995 if dict(way.settings).get("affinity") == "none" else 1.0)

    made, outcome, _ = search(ranks=(9,), step_s=seconds, n_workers=lambda way: 8, noise=0.0001)
    assert outcome.best.way == made.plain
