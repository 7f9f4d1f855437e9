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
            assert values[0] == space.own(origin(), key, {})
            assert len(values) == len(set(map(str, values)))


def test_values_that_count_for_nothing_are_left_out():
    found = [
        *space.combinations(origin(), 8, {"collective.name": ["shared", "buffer"], "train.threads": ["auto", 1, 2]})
    ]
    assert found == [{}, {"collective.name": "buffer"}], "with a rank for each core there is one thread"
    alone = [
        *space.combinations(origin(), 1, {"collective.name": ["shared", "buffer"], "train.threads": ["auto", 1, 8]})
    ]
    assert [*space.combinations(origin(), 1, {"collective.name": ["buffer"]})] == [{}]
    assert alone == [{}, {"train.threads": 1}, {"train.threads": 8}], "one rank exchanges nothing"


def test_defaults_are_those_of_the_collective_of_a_way():
    assert space.own(origin(), "collective.reducers", {}) == "cores"
    assert space.own(origin(), "collective.bucket_bytes", {"collective.name": "buffer"}) == 1 << 20
    assert space.own(origin(), "collective.bucket_bytes", {}) is None


def test_collective_stays_where_another_would_not_compress():
    config = {**origin().config, "collective": {"name": "buffer", "compression": "onebit"}}
    for words in ({}, {"all": None}):
        assert "collective.name" not in space.opened(origin(config=config), words).broad
    assert "collective.name" in space.opened(origin(config=config), {"collective.name": None}).broad


def test_several_servers_are_tried_where_buffer_is():
    keys = space.opened(origin(n_nodes=2), {}).broad
    found = [*space.combinations(origin(n_nodes=2), 8, keys)]
    assert {"collective.name": "buffer", "sync.servers": 2} in found
    assert not [settings for settings in found if settings.get("sync.servers") and "collective.name" not in settings]


def test_mode_that_is_varied_decides_what_else_counts():
    keys = space.opened(origin(), {"sync.mode": ["sync_ps", "allreduce"]}).broad
    found = [*space.combinations(origin(), 8, keys)]
    assert not [s for s in found if s.get("sync.mode") == "allreduce" and "sync.server" in s]


def test_micro_batches_stay_where_statistics_are_theirs():
    config = {**origin().config, "parallel": {"pipeline": 2, "micro_batches": "auto", "schedule": "1f1b"}}
    of_batch = origin(config=config, own_statistics=True)
    get = space.getter(of_batch, 4, {})
    assert not space.KNOBS["parallel.micro_batches"].counts(of_batch, get, 4)


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


@pytest.mark.parametrize(
    "word", ["affinty", "train.batch_size", "train.batch_size=", "=3", "train.threads=[1", "train.seed=2020-01-01"]
)
def test_vary_that_is_wrong_is_told(word):
    with pytest.raises(UserError, match=r"--vary must be|YAML"):
        space.varied([word])


def test_every_key_is_one_of_the_config():
    from psframe.starter.completion import keys

    sections = ("sync.", "collective.", "placement.")
    assert all(key in set(keys()) or key.startswith(sections) for key in space.KNOBS)
