"""The supervisor, where launchers are killed, or do not say that all of their ranks were."""

import os
import signal
import time

import psutil
import pytest

from tests import launcher
from tests.live import ends, launch, left_in_shm, ranks_of, trains
from tests.test_loss import CONFIG, records_of

EPOCHS = 60


def supervised(mpi, tmp_path, *flags, fault="stop"):
    path = tmp_path / "loss.yaml"
    path.write_text(CONFIG.format(epochs=EPOCHS, runs=tmp_path / "runs").replace("continue", fault))
    command = [mpi.python, "-m", "psframe.run", "-n", "3", "--restarts", "1", "--quiet", str(path)]
    mpirun = [str(mpi.prefix / "bin" / "mpirun"), *mpi.flags, *flags]
    process = launch([*command, "checkpoint.every_seconds=0.1"], PSFRAME_MPIRUN=" ".join(mpirun))
    trains(process, str(path))
    return process, str(path)


def went_on(process, path, tmp_path):
    err = ends(process, path, 120)
    assert process.returncode == 0, err
    assert "start 2 of 2, from its last checkpoint" in err
    assert [record["epoch"] for record in records_of(tmp_path)] == list(range(1, EPOCHS + 1))
    assert not left_in_shm()


def test_ranks_that_a_killed_launcher_has_left_end_before_others_are_started(mpi, tmp_path):
    process, path = supervised(mpi, tmp_path)
    before = set(ranks_of(path))
    (launched,) = psutil.Process(process.pid).children()
    launched.kill()
    while len(ranks := set(ranks_of(path))) < 3 or ranks == before:
        assert not ranks & before or not ranks - before, "they train beside each other"
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    went_on(process, path, tmp_path)


def test_a_launcher_that_outlives_all_ranks_is_not_believed(tmp_path):
    mpi = launcher.installed("openmpi") or pytest.skip("no openmpi: bash launch/test.sh installs it")
    process, path = supervised(mpi, tmp_path, fault="continue")
    for pid in reversed(ranks_of(path)):
        os.kill(pid, signal.SIGKILL)
    went_on(process, path, tmp_path)
