"""What a user sees of guards: ranks that are late are named, and what is wrong in a config is told."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from psframe import compiled
from psframe.cluster.heartbeat import ARRIVED, COMPUTING, Pulse, size
from psframe.cluster.stragglers import StragglerMonitor
from tests.helpers.launcher import ROOT
from tests.helpers.live import ranks_of
from tests.helpers.said import told
from tests.helpers.thinned import thinned


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 2048, 5001])
def test_checksum_changes_with_any_flipped_bit(n):
    vector = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    sound, bits = compiled.elementwise.checksum(vector), vector.view(np.uint32)
    for place in range(0, n, max(1, n // 50)):
        for bit in range(32):
            bits[place] ^= np.uint32(1 << bit)
            assert compiled.elementwise.checksum(vector) != sound
            bits[place] ^= np.uint32(1 << bit)
    assert compiled.elementwise.checksum(vector) == sound


def test_checksum_changes_where_numbers_change_places():
    vector = np.arange(4096, dtype=np.float32)
    assert compiled.elementwise.checksum(vector) != compiled.elementwise.checksum(vector[::-1].copy())
    assert compiled.elementwise.checksum(vector) != compiled.elementwise.checksum(np.roll(vector, 32))
    assert compiled.elementwise.checksum(vector) != compiled.elementwise.checksum(np.roll(vector, 2048))


@pytest.mark.parametrize("place", [0, 7, 4999])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_number_that_is_not_finite_is_found(place, number):
    vector = np.full(5000, np.finfo(np.float32).max, np.float32)
    assert compiled.elementwise.is_finite(vector)
    vector[place] = number
    assert not compiled.elementwise.is_finite(vector)


def test_rank_is_late_only_where_it_keeps_others_waiting(capfd):
    memory = np.zeros(size(3), np.uint8)
    pulses = [Pulse(memory, 3, rank) for rank in range(3)]
    watch = StragglerMonitor(pulses[0], (10, 11, 12), 1e-6)
    for pulse in pulses:
        pulse.tell(COMPUTING, 5)
    watch.look()
    pulses[0].tell(ARRIVED, 5)
    pulses[2].tell(ARRIVED, 5)
    time.sleep(0.01)
    for _ in range(8):
        watch.look()
    pulses[1].tell(ARRIVED, 5)
    watch.look()
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("psframe: warning: rank 11 is ")
    assert line.endswith(" s late in exchange (step 5, epoch 0)")
    assert set(watch.take()) == {11}
    assert not watch.take()


def test_rank_that_waits_for_other_nodes_is_not_late(capfd):
    memory = np.zeros(size(3), np.uint8)
    pulses = [Pulse(memory, 3, rank) for rank in range(3)]
    watch = StragglerMonitor(pulses[0], (10, 11, 12), 1e-6, lambda: [1])  # who keeps a gate closed
    for pulse in pulses:
        pulse.tell(ARRIVED, 5)
    pulses[1].leave()
    assert [pulses[0].is_away(rank) for rank in range(3)] == [False, True, False]
    time.sleep(0.01)
    for _ in range(8):
        watch.look()
    assert capfd.readouterr().err == ""
    pulses[1].return_()
    time.sleep(0.01)
    for _ in range(8):
        watch.look()
    assert "rank 11 is " in capfd.readouterr().err


KEYS = ["on_nan=later", "check_every=-1", "late_s=-1", "flip=1", "flip=params:0:1", "flip=params:3:1:1",
        "flip=params:0:1:99999999", "flip=data:0:1:1", "flip=params:0:1:-1", "flip=[1]"]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_guard_that_is_none_is_told(pool, config, key):
    ended = pool(3).train(config, f"fault.{key}")
    assert ended.status == 2, ended
    (line,) = told(ended)
    assert f"fault.{key.partition('=')[0]}" in line
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("key", ["on_nan=skip", "on_nan=rollback", "check_every=2"])
def test_modes_that_cannot_drop_a_step_say_so(pool, config, key):
    ended = pool(3).train(config, f"fault.{key}", "sync=local_sgd")
    assert ended.status == 2, ended
    (line,) = told(ended)
    assert "sync_ps" in line


@pytest.mark.parametrize("collective", ["shared", "buffer"])
def test_job_that_stops_at_a_step_says_whose_gradients_it_was(mpi, config, collective, pool):
    ended = pool(3, mpi).train(config, f"collective={collective}", "fault.flip=gradients:2:3:nan")
    assert ended.status == 2, ended
    (line,) = told(ended)
    assert "those of rank 2 were not in step 3 (epoch 1)" in line
    assert "fault.on_nan=skip" in line


@pytest.fixture
def slow_steps(tmp_path):
    """A run of which a rank is all but always computing, of epochs of ten steps: waits for these grow with a load."""
    path = tmp_path / "slow.yaml"
    path.write_text(
        "model: tests.helpers.tiny:build\ndataset: {name: synthetic, shape: [1, 6, 6], classes: 3, samples: 600}\n"
        f"train: {{epochs: 100000, batch_size: 20}}\nrecord: {{dir: {tmp_path / 'runs'}}}\n"
        "checkpoint: {every_epochs: 0}\nsync: allreduce\nfault: {slow_rank: all, slow_steps: 20, late_s: 1}\n"
    )
    return str(path)


def n_done(path):
    """Return how many epochs a run has recorded."""
    return sum(metrics.read_text().count("\n") for metrics in (Path(path).parent / "runs").glob("*/metrics.jsonl"))


def late_in(path):
    """Return the seconds that a run's record counts, by rank."""
    late: dict[str, float] = {}
    for metrics in (Path(path).parent / "runs").glob("*/metrics.jsonl"):
        for line in metrics.read_text().splitlines(keepends=True):
            for rank, seconds in json.loads(line)["late"].items() if line.endswith("\n") else ():
                late[rank] = late.get(rank, 0.0) + seconds
    return late


VICTIMS = [("shared", 0), ("shared", 2), ("buffer", 0), ("buffer", 2)]


@pytest.mark.parametrize(("collective", "victim"), thinned(VICTIMS, (0,)))
def test_rank_stopped_for_a_while_is_named_once_and_counted(mpi, slow_steps, collective, victim):
    command = mpi.command(3, ["-m", "psframe.train", slow_steps, "--quiet", f"collective={collective}"])
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        comes(lambda: list((Path(slow_steps).parent / "runs").glob("*/metrics.jsonl")), process)
        pid, stops = ranks_of(slow_steps)[victim], 0
        while str(victim) not in late_in(slow_steps) and stops < 6:  # they may be between two epochs just then
            os.kill(pid, signal.SIGSTOP)
            time.sleep(4)
            os.kill(pid, signal.SIGCONT)
            stops += 1
            n_epochs = n_done(slow_steps)
            comes(lambda n=n_epochs: n_done(slow_steps) > n + 1, process)  # what is counted is in the record by then
    finally:
        os.kill(process.pid, signal.SIGTERM)
        _, err = process.communicate(timeout=120)
    lines = [line for line in err.splitlines() if f"rank {victim} is" in line]
    steps = [line.partition(" s late in exchange (step ")[2] for line in lines]
    assert all(steps), err
    assert len(set(steps)) == len(steps) >= 1, err
    assert late_in(slow_steps)[str(victim)] >= 1


def comes(is_there, process):
    until = time.monotonic() + 300
    while not is_there():
        assert time.monotonic() < until, "it does not come"
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
