"""Objects of a script in a config: each has a name of its own, and comes back in its place."""

from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from psframe.api import script
from psframe.api.objects import named, restored


def one():
    """An object of a script."""


def two():
    """Another one."""


KEYS = st.sampled_from(["train", "record", "a.b", "a-b", "name"])
VALUES = st.recursive(
    st.sampled_from([one, two, None, True, 3, 0.5, "text"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=9,
)


def callables(value):
    if callable(value):
        return [value]
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [found for each in inner for found in callables(each)]


@settings(max_examples=200, deadline=None)
@given(config=st.dictionaries(KEYS, VALUES, max_size=4))
def test_objects_come_back_in_their_places(config):
    plain, objects = named(config)
    assert not callables(plain)
    assert {id(found) for found in objects.values()} == {id(found) for found in callables(config)}
    assert restored(plain, objects) == config


def test_object_that_is_not_there_stays_a_name():
    plain, _ = named({"record": {"metrics": [one]}})
    assert restored(plain, {}) == plain == {"record": {"metrics": [f"{script.__name__}:record_metrics_0"]}}


def test_numbers_and_paths_become_those_of_yaml():
    plain, objects = named({"train": {"epochs": np.int64(3), "lr": np.float64(0.5)}, "record": {"dir": Path("runs/a")}})
    assert plain == {"train": {"epochs": 3, "lr": 0.5}, "record": {"dir": "runs/a"}}
    assert [type(value) for value in plain["train"].values()] == [int, float]
    assert not objects
