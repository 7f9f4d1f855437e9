"""Pipelines that are disturbed while they train."""

import os
import signal
import subprocess

import pytest

from tests.helpers.live import ends, left_in_shm, records_of, start
from tests.helpers.seeds import seeded
from tests.helpers.thinned import thinned

CONFIG = """\
model: tests.helpers.tiny:build
dataset: {{name: synthetic, shape: [2, 8, 9], classes: 5, samples: 2400}}
train: {{epochs: {epochs}, batch_size: 16, seed: 3}}
optimizer: {{name: sgd, lr: 0.01, momentum: 0.5}}
parallel: {{pipeline: 2, micro_batches: 4}}
nn: {{kernels: blas}}  # compiles less, for each stage
checkpoint: {{every_seconds: 0.2}}
record: {{dir: {runs}}}
"""


EPOCHS = 16


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "parallel.yaml"
    path.write_text(CONFIG.format(epochs=EPOCHS, runs=tmp_path / "runs"))
    return str(path)


@pytest.mark.full
@pytest.mark.parametrize("mode", ["allreduce", "{mode: sync_ps, server: colocated}"])
def test_run_asked_to_leave_goes_on_to_the_same_bits(mpi, tmp_path, path, mode, pool):
    assert pool(4, mpi).train(path, f"sync={mode}", f"record.dir={tmp_path / 'whole' / 'runs'}").status == 0
    draw = seeded("victim")
    process, ranks = start(mpi, 4, path, f"sync={mode}", "train.epochs=400")
    os.kill(ranks[draw.randrange(4)], signal.SIGTERM)
    ends(process, path)
    assert process.returncode == 128 + signal.SIGTERM
    cut = records_of(tmp_path)
    last = max(EPOCHS, len(cut) + 1)
    again = pool(4, mpi).train(path, f"sync={mode}", f"train.epochs={last}", "checkpoint.resume=auto")
    assert again.status == 0, again.err
    whole, cut = records_of(tmp_path / "whole"), records_of(tmp_path)
    assert [r["params_sha256"] for r in cut][:EPOCHS] == [r["params_sha256"] for r in whole]
    assert not left_in_shm()


GRIDS = ("{pipeline: 2, micro_batches: 4}", "{model: 2}", "{pipeline: 2, model: 2}")


@pytest.mark.parametrize(("grid", "victim"), thinned([(grid, victim) for grid in GRIDS for victim in (0, 3)], (5,)))
def test_rank_that_dies_ends_the_job(mpi, path, grid, victim):
    process, ranks = start(mpi, 4, path, "train.epochs=400", f"parallel={grid}")
    os.kill(ranks[victim], signal.SIGKILL)
    ends(process, path)
    assert process.returncode not in (0, None)
    assert not left_in_shm()


@pytest.mark.full
def test_ctrl_c_leaves_a_checkpoint(mpi, tmp_path, path):
    process, _ = start(mpi, 4, path, "train.epochs=400")
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(120)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode != 0
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "checkpoints" / "latest").exists()
