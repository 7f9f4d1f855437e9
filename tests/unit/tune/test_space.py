"""Keys that tuning may change, as the command line opens them."""

import msgspec
import pytest

from psframe.config import tuned
from psframe.errors import UserError
from psframe.tune import space
from psframe.tune.way import Way
from tests.helpers.simulated import Simulated


def origin(**changes):
    return msgspec.convert({**Simulated(None).look(Way(8)), **changes}, space.Origin)


def test_keys_are_those_of_the_cache():
    assert set(space.KNOBS) == set(tuned.KEYS)


def test_machine_with_one_kind_of_memory_leaves_placement_alone():
    opened = space.opened(origin(), {})
    assert not [key for key in (*opened.broad, *opened.fine) if key.startswith("placement")]
    both = space.opened(origin(tiers=["ddr", "hbw"]), {})
    assert both.fine["placement.parameters.name"] == ["default", "ddr", "hbw"]


def test_own_value_comes_first_and_once():
    opened = space.opened(origin(), {})
    for keys in (opened.broad, opened.fine):
        for key, values in keys.items():
            assert values[0] == space.own(origin(), key)
            assert len(values) == len(set(map(str, values)))


def test_values_that_count_for_nothing_are_left_out():
    found = [
        *space.combinations(origin(), 8, {"collective.name": ["shared", "buffer"], "train.threads": ["auto", 1, 2]})
    ]
    assert found == [{}, {"collective.name": "buffer"}], "with a rank for each core there is one thread"
    alone = [
        *space.combinations(origin(), 1, {"collective.name": ["shared", "buffer"], "train.threads": ["auto", 1, 8]})
    ]
    assert alone == [{}, {"train.threads": 1}, {"train.threads": 8}], "one rank exchanges nothing"


def test_pipeline_opens_its_keys():
    config = {**origin().config, "parallel": {"pipeline": 2, "micro_batches": "auto", "schedule": "1f1b"}}
    assert {"parallel.micro_batches", "parallel.schedule"} <= space.opened(origin(config=config), {}).fine.keys()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["affinity"], {"affinity": None}),
        (["all"], {"all": None}),
        (["train.batch_size=16,32"], {"train.batch_size": [16, 32]}),
        (["collective={name: shared, reducers: all}"], {"collective": [{"name": "shared", "reducers": "all"}]}),
    ],
)
def test_vary(words, found):
    assert space.varied(words) == found


@pytest.mark.parametrize("word", ["affinty", "train.batch_size", "train.batch_size=", "=3", "train.threads=[1"])
def test_vary_that_is_wrong_is_told(word):
    with pytest.raises(UserError, match=r"--vary must be|YAML"):
        space.varied([word])


def test_every_key_is_one_of_the_config():
    from psframe.starter.completion import keys

    sections = ("sync.", "collective.", "placement.")
    assert all(key in set(keys()) or key.startswith(sections) for key in space.KNOBS)
