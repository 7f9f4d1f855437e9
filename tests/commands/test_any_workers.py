"""A run that loses a worker and goes on without it ends in the bits of one that lost none."""

import pytest

from tests.helpers import launcher
from tests.helpers.live import records_of

KEYS = [
    "train.reproducible=any_workers",
    "train.global_batch=24",
    "train.epochs=3",
    "fault.on_worker_loss=continue",
    "--quiet",
]


def trained(mpi, where, *command):
    """Train on four ranks; return the records and what was told."""
    ended = launcher.run(mpi, 4, [*command, *KEYS, f"record.dir={where / 'runs'}"])
    assert ended.status == 0, ended
    return records_of(where), ended.err


@pytest.mark.full
@pytest.mark.parametrize(
    ("model", "mode", "n_workers"),
    [("build", "allreduce", 4), ("meeting", "sync_ps", 3), ("meeting", "allreduce", 4)],
)
def test_lost_worker_changes_no_bit(ulfm, config, tmp_path, model, mode, n_workers):
    """Also one that others wait for within a layer."""
    keys = [config, f"model=tests.helpers.tiny:{model}", f"sync.mode={mode}"]
    whole, _ = trained(ulfm, tmp_path / "whole", "-m", "psframe.train", *keys)
    lost, told = trained(ulfm, tmp_path / "lost", "-m", "tests.helpers.dying", "2", "9", *keys)
    assert "rank 2 has died in epoch 2" in told
    assert [record["n_workers"] for record in lost] == [n_workers, n_workers - 1, n_workers - 1]
    for key in ("params_sha256", "test_loss", "accuracy"):
        assert [record[key] for record in lost] == [record[key] for record in whole], key


@pytest.mark.full
@pytest.mark.parametrize("mode", ["sync_ps", "allreduce"])
def test_lost_worker_that_computes_lent_blocks_changes_no_bit(ulfm, config, tmp_path, mode):
    """The last worker is slow, so others have blocks of it when one of these dies."""
    slow = ["fault.slow_rank=3", "fault.slow_steps=5", "fault.late_s=0"]
    keys = [config, "dataset.samples=1003", f"sync={{mode: {mode}, balance: speed}}", *slow]
    whole, _ = trained(ulfm, tmp_path / "whole", "-m", "psframe.train", *keys)
    lost, told = trained(ulfm, tmp_path / "lost", "-m", "tests.helpers.dying", "2", "130", *keys)
    assert "rank 2 has died in epoch" in told
    assert [record["params_sha256"] for record in lost] == [record["params_sha256"] for record in whole]
    n_workers = whole[0]["n_workers"]
    assert lost[-1]["n_workers"] == n_workers - 1
    assert all(record["shares"][-1] < 24 / n_workers for record in whole), "nobody had blocks of the slow one"
