"""A run that loses a worker and goes on without it ends in the bits of one that lost none."""

import json
from dataclasses import replace

import pytest

from tests import launcher

KEYS = [
    "train.reproducible=any_workers",
    "train.global_batch=24",
    "train.epochs=3",
    "sync.mode=allreduce",
    "fault.on_worker_loss=continue",
    "--quiet",
]


def trained(mpi, where, *command):
    """Train on four ranks; return the records and what was told."""
    ended = launcher.run(mpi, 4, [*command, *KEYS, f"record.dir={where}"])
    assert ended.status == 0 or "died" in ended.err, ended
    (metrics,) = where.glob("*/metrics.jsonl")
    return [json.loads(line) for line in metrics.read_text().splitlines()], ended.err


def test_a_lost_worker_changes_no_bit(config, tmp_path):
    mpi = launcher.installed("openmpi")
    if mpi is None:
        pytest.skip("no openmpi here, whose ranks may outlive another: bash launch/test.sh installs it")
    mpi = replace(mpi, flags=(*mpi.flags, "--with-ft", "ulfm"))
    whole, _ = trained(mpi, tmp_path / "whole", "-m", "psframe.train", config)
    lost, told = trained(mpi, tmp_path / "lost", "-m", "tests.dying", "2", "9", config)
    assert "rank 2 has died in epoch 2" in told
    assert [record["n_workers"] for record in lost] == [4, 3, 3]
    for key in ("params_sha256", "test_loss", "accuracy"):
        assert [record[key] for record in lost] == [record[key] for record in whole], key
