"""The supervisor, where launchers are killed, or do not say that all of their ranks were."""

import os
import signal
import time
from itertools import product

import psutil
import pytest

from psframe.record import run_lock
from tests.helpers import launcher, runs
from tests.helpers.live import catches, ends, launch, left_in_shm, ranks_of, records_of, trains
from tests.helpers.thinned import thinned

EPOCHS = 60


def supervised(mpi, tmp_path, *flags, fault="stop"):
    path = runs.write(tmp_path / "loss.yaml", EPOCHS, fault)
    command = [mpi.python, "-m", "psframe.run", "-n", "3", "--restarts", "1", "--quiet", path]
    mpirun = [str(mpi.prefix / "bin" / "mpirun"), *mpi.flags, *flags]
    process = launch([*command, "checkpoint.every_seconds=0.1"], PSFRAME_MPIRUN=" ".join(mpirun))
    trains(process, path)
    while not list((tmp_path / "runs").glob("*/checkpoints/latest")):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process, path


def went_on(process, path, tmp_path):
    err = ends(process, path)
    assert process.returncode == 0, err
    assert "start 2 of 2, from its last checkpoint" in err
    assert [record["epoch"] for record in records_of(tmp_path)] == list(range(1, EPOCHS + 1))
    assert not left_in_shm()


def test_ranks_of_killed_launcher_end_before_others_start(mpi, tmp_path):
    process, path = supervised(mpi, tmp_path)
    (run,) = (tmp_path / "runs").iterdir()
    assert f":{process.pid}:" in run_lock.job_of(run), "it takes another job's run for its own"
    before = set(ranks_of(path))
    (launched,) = psutil.Process(process.pid).children()
    launched.kill()
    while len(ranks := set(ranks_of(path))) < 3 or ranks == before:
        assert not ranks & before or not ranks - before, "they train beside each other"
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    went_on(process, path, tmp_path)


@pytest.mark.full
def test_launcher_that_outlives_all_ranks_is_not_believed(tmp_path):
    mpi = launcher.installed("openmpi") or pytest.skip("no openmpi: bash launch/test.sh installs it")
    process, path = supervised(mpi, tmp_path, fault="continue")
    for pid in reversed(ranks_of(path)):
        os.kill(pid, signal.SIGKILL)
    went_on(process, path, tmp_path)


def begun(mpi, tmp_path, *overrides, epochs=EPOCHS):
    """Start one, and do not wait until it trains."""
    path = runs.write(tmp_path / "loss.yaml", epochs)
    mpirun = [str(mpi.prefix / "bin" / "mpirun"), *mpi.flags]
    words = [mpi.python, "-m", "psframe.run", "-n", "3", "--restarts", "1", "--quiet", path, *overrides]
    return launch(words, PSFRAME_MPIRUN=" ".join(mpirun)), path


@pytest.mark.parametrize(
    ("number", "after_s"), thinned(product((signal.SIGINT, signal.SIGTERM), (0.5, 0.9, 1.4)), kept=(0, 5))
)
def test_signal_before_ranks_train_ends_them(mpi, tmp_path, number, after_s):
    process, path = begun(mpi, tmp_path, epochs=100000)
    time.sleep(after_s)
    while catches(process.pid, signal.SIGINT) and not psutil.Process(process.pid).children():
        time.sleep(0.01)  # as Python does until the module is imported
    process.send_signal(number)
    err = ends(process, path)
    assert process.returncode in (128 + number, -number), err  # the latter while Python starts
    assert "Traceback" not in err
    assert "were killed" not in err


@pytest.mark.full
def test_job_that_recorded_more_than_it_saved_begins_anew(mpi, tmp_path):
    process, path = begun(mpi, tmp_path, "fault.crash_at=write", epochs=3)
    err = ends(process, path)
    assert "start 2 of 2, from the beginning" in err
    assert process.returncode == 1 + 8 or process.returncode > 128, err  # of the second one, which is killed, too
    assert len(list((tmp_path / "runs").iterdir())) == 2


@pytest.mark.full
def test_job_that_dies_when_all_is_saved_is_done(mpi, tmp_path):
    process, path = begun(mpi, tmp_path, "fault.crash_at=latest-write", epochs=1)
    err = ends(process, path)
    assert process.returncode == 0, err
    assert "training was done, and saved, when the job ended with status" in err


def test_ranks_leave_when_supervisor_is_killed(mpi, tmp_path):
    process, path = supervised(mpi, tmp_path)
    process.kill()
    ends(process, path)
    assert not left_in_shm()
    (run,) = (tmp_path / "runs").iterdir()
    assert (run / "checkpoints" / "latest").exists()


def test_job_that_is_done_when_asked_to_leave_is_done(mpich, tmp_path):
    """A scheduler that started it again would train anew."""
    trained, slow = tmp_path / "trained", tmp_path / "slow-mpirun"
    slow.write_text(f'#!/bin/sh\ntrap "" USR1\n{mpich.prefix / "bin" / "mpirun"} "$@"\ntouch {trained}\nsleep 3\n')
    slow.chmod(0o755)
    path = runs.write(tmp_path / "loss.yaml", 2)
    process = launch([mpich.python, "-m", "psframe.run", "-n", "2", "--quiet", path], PSFRAME_MPIRUN=str(slow))
    while not trained.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    err = ends(process, path)
    assert process.returncode == 0, err
    again = launch([mpich.python, "-m", "psframe.run", "-n", "2", "--finish", path])
    assert ends(again, path) == ""
    assert again.returncode == 0
    assert [record["epoch"] for record in records_of(tmp_path)] == [1, 2]
