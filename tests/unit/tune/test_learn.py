"""Model of the machine beside a search: it predicts the ways that it knows, and no others."""

import pytest

from psframe.predict.command import Asked
from psframe.tune.learn import Model
from psframe.tune.way import Way
from tests.helpers.predictions import job

SERVED = {"mode": "sync_ps", "server": "dedicated", "n_servers": 1, "reproducible": "none"}
AVERAGED = {"mode": "local_sgd", "server": None, "n_servers": 1, "reproducible": "none", "every": 8, "pull_every": 8}


def model(**way):
    made = object.__new__(Model)  # which would measure the work of a config
    made.asked = Asked("c.yaml", "m.yaml", [], (), job(), [4], way, "shared", 68)
    return made


@pytest.mark.parametrize(
    ("of_config", "settings", "mode", "n_workers"),
    [
        (SERVED, (), "sync_ps", 3),
        (SERVED, (("sync.server", "colocated"),), "sync_ps", 4),
        (SERVED, (("sync.mode", "allreduce"),), "allreduce", 4),
        (AVERAGED, (), "local_sgd", 4),
        (AVERAGED, (("sync.mode", "sync_ps"),), "sync_ps", 3),
    ],
)
def test_way_is_predicted_as_it_would_train(of_config, settings, mode, n_workers):
    found = model(**of_config).predicted(Way(4, settings, None)).way
    assert (found.mode, found.n_workers) == (mode, n_workers)
    assert found.every == (8 if mode == "local_sgd" else 1)


@pytest.mark.parametrize("settings", [(("sync.mode", "easgd"),), (("affinity", "numa"),)])
def test_way_that_is_not_known_is_not_predicted(settings):
    assert model(**SERVED).predicted(Way(4, settings, None)) is None
