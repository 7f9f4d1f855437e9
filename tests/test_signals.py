"""Ctrl-C and SIGTERM: the ranks leave a checkpoint and go, or go at once; nothing stays behind."""

import os
import signal
import sys
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest

from psframe.signals import Signals
from tests import launcher
from tests.live import ends, launch, left_in_shm, ranks_of, records_of, start, trains

CONFIG = """\
model: tests.tiny:build
dataset: {{name: synthetic, shape: [2, 8, 9], classes: 5, samples: 2400}}
train: {{epochs: {epochs}, batch_size: 8, seed: 3}}
optimizer: {{name: sgd, lr: 0.01, momentum: 0.5}}
record: {{dir: {runs}}}
"""


def written(tmp_path, epochs):
    path = tmp_path / "signal.yaml"
    path.write_text(CONFIG.format(epochs=epochs, runs=tmp_path / "runs"))
    return str(path)


def hashes_of(tmp_path):
    return [record["params_sha256"] for record in records_of(tmp_path)]


def test_signals_that_come_together_ask_once(monkeypatch):
    """What a launcher passes on and what a scheduler sends to everyone may both wait when Python looks."""
    complaints, halt = [], SimpleNamespace(signal=0)
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    both = {signal.SIGUSR1, signal.SIGTERM}
    with Signals(halt, False):
        for _ in range(3):
            signal.pthread_sigmask(signal.SIG_BLOCK, both)
            for number in both:
                os.kill(os.getpid(), number)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, both)
        assert halt.signal in both
    os.kill(os.getpid(), signal.SIGTERM)  # one that comes when it is all over
    for number in both:
        signal.signal(number, signal.SIG_DFL)
    assert not complaints


def test_who_leaves_because_another_was_asked_is_not_ended_by_what_comes_later():
    halt = SimpleNamespace(signal=0)
    with Signals(halt, False):
        halt.signal = signal.SIGTERM  # another rank of the node
    os.kill(os.getpid(), signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGUSR1)
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("mode", "number"),
    [
        ("sync_ps", signal.SIGINT),
        ("async_ps", signal.SIGTERM),
        ("easgd", signal.SIGINT),
        ("hogwild", signal.SIGTERM),
        ("local_sgd", signal.SIGINT),
        ("hybrid", signal.SIGTERM),
    ],
)
def test_the_ranks_leave_inside_an_epoch_with_a_checkpoint(mpich, tmp_path, mode, number):
    path = written(tmp_path, 10000)
    process, pids = start(mpich, 4, path, f"sync.mode={mode}")
    process.send_signal(number)
    sent = time.monotonic()
    for pid in pids if number == signal.SIGTERM else ():  # as a scheduler does
        with suppress(ProcessLookupError):
            os.kill(pid, number)
    err = ends(process, path)
    assert time.monotonic() - sent < 10 + 5  # what is promised, and a machine that is busy
    assert process.returncode == 128 + number
    assert f"left on {number.name} after" in err
    assert "Traceback" not in err
    assert not left_in_shm()
    (run,) = (tmp_path / "runs").iterdir()
    latest = (run / "checkpoints" / "latest").read_text().strip()
    done = len((run / "metrics.jsonl").read_text().splitlines())
    again = launcher.train(mpich, 4, path, f"sync.mode={mode}", "checkpoint.resume=auto", f"train.epochs={done + 2}")
    assert again.status == 0, again
    assert f"continued after epoch {int(latest[6:11])}" in again.out
    assert len(hashes_of(tmp_path)) == done + 2


@pytest.mark.parametrize(
    "sync",
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
)
def test_a_run_that_left_after_the_last_step_of_an_epoch_goes_on(mpich, tmp_path, sync):
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
    done = len(hashes_of(folder))
    again = launcher.train(mpich, n, path, *keys, "checkpoint.resume=auto", f"train.epochs={done + 2}")
    assert again.status == 0, again
    records = records_of(folder)
    assert len(records) == done + 2
    assert [record["loss"] is None for record in records[done:]] == [True, False]
    assert records[done]["begun_at"] == 8


@pytest.mark.parametrize("collective", ["shared", "buffer"])
def test_a_run_that_left_and_came_back_ends_in_the_bits_of_one_that_stayed(mpich, tmp_path, collective):
    (tmp_path / "whole").mkdir()
    path, whole = written(tmp_path, 12), written(tmp_path / "whole", 12)
    key = f"collective={collective}"
    assert launcher.train(mpich, 3, whole, key, "--quiet").status == 0
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
    ends(process, path, 60)
    if process.returncode:  # the last signal
        assert launcher.train(mpich, 3, path, key, "checkpoint.resume=auto", "--quiet").status == 0
    assert hashes_of(tmp_path) == hashes_of(tmp_path / "whole")


def test_a_second_one_ends_a_rank_at_once_where_it_is_ctrl_c(mpich, tmp_path):
    path = written(tmp_path, 10000)
    process, pids = start(mpich, 3, path, "fault={slow_rank: all, slow_steps: 200}")  # a step takes long now
    os.kill(pids[1], signal.SIGTERM)
    time.sleep(0.5)
    if process.poll() is None and pids[1] in ranks_of(path):
        os.kill(pids[1], signal.SIGINT)
    sent = time.monotonic()
    ends(process, path)
    assert time.monotonic() - sent < 7, "it left as the first one asks for, when its time was up"
    assert process.returncode != 0
    assert not left_in_shm()


def test_open_mpi_ends_its_ranks_at_once_and_the_last_checkpoint_stays(tmp_path):
    mpi = launcher.installed("openmpi") or pytest.skip("no openmpi: bash launch/test.sh installs it")
    path = written(tmp_path, 10000)
    process, _ = start(mpi, 3, path)
    process.send_signal(signal.SIGTERM)
    ends(process, path)
    assert process.returncode != 0
    assert not left_in_shm()
    again = launcher.train(mpi, 3, path, "checkpoint.resume=auto", f"train.epochs={len(hashes_of(tmp_path)) + 2}")
    assert again.status == 0, again


def test_ranks_whose_launcher_was_killed_do_not_train_on(mpi, tmp_path):
    path = written(tmp_path, 10000)
    process, _ = start(mpi, 3, path)
    process.send_signal(signal.SIGKILL)
    process.wait()
    until = time.monotonic() + 30
    while ranks_of(path):
        assert time.monotonic() < until, "ranks stay behind"
        time.sleep(0.05)
    process.stderr.close()
    assert not left_in_shm()
    again = launcher.train(mpi, 3, path, "checkpoint.resume=auto", f"train.epochs={len(hashes_of(tmp_path)) + 2}")
    assert again.status == 0, again


def test_a_run_without_checkpoints_leaves_none(mpich, tmp_path):
    path = written(tmp_path, 10000)
    process, _ = start(mpich, 2, path, "checkpoint.every_epochs=0")
    process.send_signal(signal.SIGTERM)
    err = ends(process, path)
    assert process.returncode == 143
    assert "left on SIGTERM" in err
    (run,) = (tmp_path / "runs").iterdir()
    assert not list((run / "checkpoints").iterdir())
