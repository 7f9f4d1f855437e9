"""Ways that configs ask for, as the prediction names them."""

import pytest

from psframe.config import schema
from psframe.errors import UserError
from psframe.predict import config_way
from psframe.predict.job import ExchangePlan

CONFIG = """\
model: tests.helpers.tiny:build
dataset: {name: synthetic, shape: [1, 6, 6], classes: 3, samples: 480}
train: {epochs: 1, batch_size: 8}
"""
EACH_3 = {"every": 3, "pull_every": 3}
PLAIN = {"every": 1, "pull_every": 1, "blocks": 0, "stages": 1, "shards": 1, "micro_batches": 1}


@pytest.fixture
def path(tmp_path):
    (tmp_path / "c.yaml").write_text(CONFIG)
    return str(tmp_path / "c.yaml")


@pytest.mark.parametrize(
    ("keys", "pace", "fields"),
    [
        ([], "step", {"mode": "sync_ps", "server": "dedicated"}),
        (["sync={mode: sync_ps, server: colocated, servers: 2}"], "step", {"server": "colocated", "n_servers": 2}),
        (["sync={mode: allreduce, wait: block, deadline_s: 60, balance: speed}"], "step", {"server": None}),
        (["sync={mode: async_ps}"], "own", {"mode": "async_ps", "server": "dedicated"}),
        (["sync={mode: async_ps, pull_every: 2, push_every: 5}"], "own", {"every": 5, "pull_every": 2}),
        (["sync={mode: async_ps, staleness: 2}"], "own", {"mode": "bounded async_ps"}),
        (["sync={mode: async_ps, compensate: true}"], "own", {"mode": "compensated async_ps"}),
        (["sync={mode: easgd, period: 3}"], "own", {"mode": "easgd", "every": 3, "pull_every": 3}),
        (
            ["sync={mode: easgd, period: 3, synchronous: true}"],
            "period",
            {"mode": "synchronous easgd", "every": 3, "pull_every": 3},
        ),
        (["sync={mode: local_sgd, every: 6}"], "period", {"every": 6, "pull_every": 6, "server": None}),
        (["sync={mode: block_momentum, every: 6}"], "period", {"every": 6, "pull_every": 6}),
        (["sync={mode: hogwild}"], "own", {"every": 1}),
        (["sync={mode: dogwild, period: 7}"], "own", {"every": 7, "pull_every": 7}),
        (["train.reproducible=any_workers", "train.global_batch=64"], "step", {"blocks": 8, "samples": 64}),
        (["sync=allreduce", "parallel={pipeline: 2}"], "stages", {"stages": 2, "micro_batches": 8}),
        (["sync=allreduce", "parallel={model: 2, micro_batches: 3}"], "stages", {"shards": 2, "micro_batches": 3}),
    ],
)
def test_config_names_a_way(path, keys, pace, fields):
    found = config_way.asked(path, keys)
    assert {key: found[key] for key in PLAIN.keys() - fields.keys()} == {
        key: PLAIN[key] for key in PLAIN.keys() - fields.keys()
    }
    assert {key: found[key] for key in fields} == fields
    of_way = {key: found[key] for key in ExchangePlan.__dataclass_fields__.keys() & found.keys()}
    assert ExchangePlan(**{**of_way, "collective": "shared"}, ranks=4).pace == pace


@pytest.mark.parametrize(
    ("keys", "batch"),
    [
        (["train.reproducible=any_workers", "train.global_batch=60"], 8),
        (["train.reproducible=any_workers", "train.global_batch=64", "train.blocks=4"], 16),
        (["sync=allreduce", "parallel={pipeline: 2}", "train.batch_size=12"], 12),
    ],
)
def test_config_without_exchange_has_the_batch_of_one_computation(path, keys, batch):
    alone = schema.read(path, config_way.alone(path, keys), "auto")
    assert (alone.train.batch_size, alone.train.global_batch) == (batch, None)
    assert (alone.parallel.is_cut, alone.collective["name"]) == (False, "null")


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (["sync={mode: hybrid}"], "knows sync.mode"),
        (["sync={mode: sync_ps, backup_workers: 1}"], "got sync_ps with backup workers"),
        (["sync={mode: async_ps, staleness: 0}"], "got async_ps with staleness 0"),
        (["train.precision=bf16"], "float32 alone"),
        (["sync=allreduce", "parallel={pipeline: 2, recompute: true}"], "parallel.recompute=true"),
        (["sync=allreduce", "parallel={model: 2, convolutions: data}"], "parallel.convolutions=data"),
        (["sync={mode: local_sgd}", "parallel={pipeline: 2}"], "parallel"),
        (["sync=async_ps", "train.reproducible=any_workers", "train.global_batch=8"], "reproducible"),
        (["train.reproducible=any_workers"], "global_batch"),
        (["collective=tests.helpers.own:Rows"], "knows collective shared, hierarchical, "),
    ],
)
def test_what_is_not_known_is_told(path, keys, told):
    with pytest.raises(UserError, match=told):
        config_way.asked(path, keys)
