"""Options that go together, and the table of them in the documentation."""

from dataclasses import replace

import pytest

from psframe import collectives, sync
from psframe.config import schema
from psframe.errors import UserError
from psframe.train.plan import combinations
from tests.helpers import combination_table
from tests.helpers.launcher import ROOT
from tests.ranks.every_collective import COLLECTIVES, FORMS

CUT = {"parallel": {"pipeline": 2}}
BY_SPEED = {"sync": {"balance": "speed"}}


@pytest.mark.parametrize(
    ("mode", "collective", "sections", "said"),
    [
        ("hogwild", "shared", CUT, "all replicas step together, got hogwild"),
        ("{mode: sync_ps, server: colocated, servers: 2}", "buffer", CUT, "got sync_ps with sync.servers or"),
        ("sync_ps", "shared", CUT, "needs every rank for a part of the network, got sync.server=dedicated"),
        ("allreduce", "shared", {"fault": {"on_nan": "skip"}, **CUT}, "on_nan must be stop with parallel.pipeline=2"),
        ("allreduce", "shared", {"fault": {"check_every": 3}, **CUT}, "fault.check_every must be 0"),
        (
            "allreduce",
            "shared",
            {"train": {"reproducible": "any_workers", "global_batch": 8}, **CUT},
            "cuts a step into blocks of its own",
        ),
        ("easgd", "shared", {"fault": {"on_nan": "skip"}}, "fault.on_nan must be stop in this sync mode, got skip"),
        ("async_ps", "shared", {"fault": {"on_nan": "rollback"}}, "must be stop or skip in this sync mode"),
        ("{mode: sync_ps, servers: 2}", "shared", {}, "knows one server alone, got 2 and collective=shared"),
        (
            "allreduce",
            "{name: buffer, compression: fp16}",
            {"train": {"reproducible": "any_workers", "global_batch": 8}},
            "got buffer with compression fp16",
        ),
        ("allreduce", "shared", {"train": {"precision": "bf16"}, "nn": {"kernels": "blas"}}, "got nn.kernels=blas"),
        (
            "allreduce",
            "shared",
            {"parallel": {"model": 2}, "nn": {"kernels": "winograd"}},
            "got parallel.model=2 shards",
        ),
        (
            "allreduce",
            "shared",
            {"train": {"precision": "bf16"}, "nn": {"kernels": "winograd"}},
            "must have kernels that",
        ),
        ("sync_ps", "{name: buffer, gather: reduce}", {}, "lets MPI choose the order of a sum, got .*=fixed_workers"),
        ("{mode: sync_ps, servers: 2}", "tests.helpers.own:Scratch", {}, "knows one server alone"),
        ("easgd", "shared", BY_SPEED, "is for sync_ps without backup_workers and for allreduce, got easgd"),
        ("allreduce", "shared", {"parallel": {"micro_batches": 2}, **BY_SPEED}, "got .*micro_batches=2"),
    ],
)
def test_options_that_do_not_go_together_are_told(mode, collective, sections, said):
    with pytest.raises(UserError, match=said):
        combinations.check(combination_table.asked_for(mode, collective, **sections))


def test_rank_alone_has_every_mode():
    asked = combination_table.asked_for("easgd", fault={"on_nan": "rollback"})
    combinations.check(replace(asked, alone=True))


def test_documentation_has_the_table():
    is_there = combination_table.table() in (ROOT / "docs/reference/combinations.md").read_text()
    assert is_there, "put there what `python -m tests.helpers.combination_table` prints"


def test_every_mode_of_the_table_is_in_the_documentation():
    assert names(combination_table.MODES, "mode") == set(sync.TABLE)


def names(values, key="name"):
    """Return the strategies that values of a config name: by themselves, or under ``key``."""
    return {schema.parse_value(value)[key] if "{" in value else value for value in values}


def test_every_collective_is_in_the_documentation_and_tried():
    """A new one is told here where it belongs: docs/developer/testing.md has the steps."""
    assert names(combination_table.COLLECTIVES) == set(collectives.TABLE)
    moving = set(collectives.TABLE) - {"null"}
    assert {name for name, _ in FORMS if ":" not in name} == moving, "FORMS of tests/ranks/every_collective.py"
    assert names(COLLECTIVES) == moving, "COLLECTIVES of tests/ranks/every_collective.py"
