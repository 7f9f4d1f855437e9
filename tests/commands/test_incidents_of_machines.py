"""Faults of machines, and deaths in each place, in jobs of real ranks: ``psframe why`` names the rank and the cause."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from psframe.cluster.flight import presence
from tests.helpers import launcher, live
from tests.helpers.asked_why import config, first_cause, wait_for_file, why
from tests.helpers.checkpoints import mounted
from tests.helpers.own_cgroup import cgroup, enter, within
from tests.helpers.thinned import thinned

COLLECTIVE = "collective=tests.helpers.faulty:Collective"
DEADLINE_S = 8  # what a busy machine takes is not late yet
WORK = "dataset={name: synthetic, shape: [1, 16, 16], classes: 5, samples: 6000}"
#: where a rank is killed: the environment's fault, keys of the config, the rank, and what is said of the place
PLACES = [
    ("die-evaluating:1", (), 1, "during the evaluation"),
    ("", ("fault.crash_at=sync:2", "checkpoint.every_epochs=1"), 0, "while it wrote a checkpoint"),
    ("die-summing:2", (COLLECTIVE,), 2, "the exchange"),
    ("", ("fault.crash_at=latest-sync:2", "checkpoint.every_epochs=1"), 0, "while it wrote a checkpoint"),
]


@pytest.fixture
def faulty(tmp_path):
    return config(tmp_path, "faulty", DEADLINE_S)


@pytest.fixture
def endless(tmp_path):
    return config(tmp_path, "endless", DEADLINE_S)


@pytest.mark.parametrize(("fault", "keys", "rank", "place"), thinned(PLACES, (0, 1)))
def test_rank_that_is_killed_is_named_with_the_place(mpi, faulty, tmp_path, fault, keys, rank, place):
    ended = launcher.run(mpi, 3, ["-m", "psframe.train", faulty, "--quiet", *keys], PSFRAME_FAULT=fault)
    assert ended.status != 0, ended
    assert not ended.timed_out
    wait_for_file(tmp_path)
    cause = first_cause(why(tmp_path))
    assert cause.startswith(f"1. Rank {rank} (")
    assert " died in " in cause
    assert place in cause


@pytest.mark.full
def test_call_of_another_size_is_named(mpi, faulty, tmp_path):
    ended = launcher.run(mpi, 3, ["-m", "psframe.train", faulty, "--quiet", COLLECTIVE], PSFRAME_FAULT="other-size:1")
    assert ended.status != 0, ended
    assert not ended.timed_out
    cause = first_cause(why(tmp_path))
    assert "The ranks call MPI Allreduce with different sizes: rank 1 (" in cause
    assert "at faulty.py, line" in cause


@pytest.mark.full
def test_rank_that_stops_after_another_one_has_died_is_named(ulfm, endless, tmp_path):
    """The deadline holds in calls of MPI, too, and ranks keep the numbers that they had."""
    process, pids = live.start(ulfm, 4, endless, "fault.on_worker_loss=continue", "collective=buffer", WORK)
    os.kill(pids[1], signal.SIGKILL)
    assert "rank 1 has died" in live.says(process, "psframe:")
    records = next((tmp_path / "runs").glob("*/metrics.jsonl"))
    size = records.stat().st_size
    until = time.monotonic() + 60
    while records.stat().st_size == size:
        assert time.monotonic() < until, "the others do not go on"
        time.sleep(0.05)
    os.kill(pids[3], signal.SIGSTOP)
    try:
        err = live.ends(process, endless)
    finally:
        for pid in set(live.ranks_of(endless)).intersection(pids):
            os.kill(pid, signal.SIGKILL)
    assert process.returncode != 0
    assert "rank 3 did not come to " in err
    assert first_cause(why(tmp_path)).startswith("1. Rank 3 (")
    assert "was stopped by a signal" in first_cause(why(tmp_path))


def test_rank_that_the_kernel_kills_for_its_memory_is_named(mpich, faulty, tmp_path):
    with cgroup("memory", 1 << 30) as folder:
        words = ["-m", "psframe.train", faulty, "--quiet", "sync.deadline_s=120"]  # it may take its time to the limit
        process = live.launch(within(folder, mpich.command(2, words)), PSFRAME_FAULT="eat:1")
        live.ends(process, faulty)
        wait_for_file(tmp_path)
    cause = first_cause(why(tmp_path))
    assert cause.startswith("1. Rank 1 (")
    assert "the kernel killed it, as its memory was used up" in cause


@pytest.mark.full
def test_incident_of_a_run_whose_disk_is_full_is_found(mpich, faulty, tmp_path):
    keys = ("record.steps=true", "checkpoint.every_epochs=1", "checkpoint.keep=100")
    env = {"PYTHONPATH": f"{launcher.ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=400k", "tmpfs") as disk:
        words = ["-m", "psframe.train", faulty, "--quiet", f"record.dir={disk}/runs", *keys]
        ended = launcher.run(mpich, 2, words, cwd=tmp_path, **env)
        assert ended.status == 2, ended
        (run,) = (disk / "runs").iterdir()
        command = [sys.executable, "-m", "psframe.doctor.why", str(run)]
        told = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={**os.environ, **env})
    assert "No space left on device" in first_cause(told.stdout.splitlines())
    assert list(tmp_path.glob("incident-1.json"))


@pytest.mark.full
def test_slow_disk_is_named(mpich, endless, tmp_path):
    image, keys = tmp_path / "disk.img", ("checkpoint.every_epochs=1", "sync.deadline_s=60")
    image.touch()
    os.truncate(image, 200 << 20)
    if subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], capture_output=True).returncode:
        pytest.skip("no mkfs.ext4: apt-get install e2fsprogs")
    with mounted(tmp_path / "runs", "-o", "loop", str(image)) as runs, cgroup("disk", 200_000, runs) as folder:
        words = ["-m", "psframe.train", endless, "--quiet", "model.width=4000", *keys]
        process = live.launch(within(folder, mpich.command(2, words)))
        live.trains(process, endless)
        try:
            time.sleep(12)
            cause = dumped(tmp_path)
        finally:
            os.kill(process.pid, signal.SIGTERM)
            live.ends(process, endless)
    assert "The disk of host " in cause
    assert "rank 0 (" in cause


def dumped(tmp_path):
    """Ask the run for what it does; return the first cause of that."""
    run = next((tmp_path / "runs").glob("*-*"))
    words = [sys.executable, "-m", "psframe.doctor.dump", str(run)]
    asked = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=launcher.ROOT)
    assert asked.returncode == 0, asked.stderr
    return first_cause(why(tmp_path))


@pytest.mark.full
@pytest.mark.wide
def test_rank_with_a_busy_neighbour_is_named(mpich, endless, tmp_path):
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("one core")
    process, pids = live.start(mpich, 2, endless, WORK, "affinity=none")
    for pid, core in zip(pids, cores, strict=False):
        os.sched_setaffinity(pid, {core})
    neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(neighbour.pid, {cores[1]})
        time.sleep(15)
        cause = dumped(tmp_path)
    finally:
        neighbour.kill()
        neighbour.wait()
        os.kill(process.pid, signal.SIGTERM)
        live.ends(process, endless)
    assert cause.startswith(f"1. Rank 1 ({os.uname().nodename}) shares core {cores[1]} with another process")


@pytest.mark.full
@pytest.mark.wide  # other tests would be the cause
def test_ranks_that_lose_cores_or_cpu_time_are_named(mpich, endless, tmp_path):
    if len(cores := os.sched_getaffinity(0)) < 2:
        pytest.skip("one core")
    process, pids = live.start(mpich, 2, endless, WORK, "affinity=none")
    try:
        for pid in pids:
            os.sched_setaffinity(pid, {min(cores)})
        time.sleep(25)  # the window of the keeper's samples
        assert f"1. Ranks 0, 1 ({os.uname().nodename}) may run on core {min(cores)} alone" in dumped(tmp_path)
        for pid in pids:
            os.sched_setaffinity(pid, cores)
        (node,) = presence.present(next(Path(tmp_path / "runs").glob("*-*")))
        with cgroup("cpu", 20_000) as folder:
            enter(folder, [*pids, node.pid])
            time.sleep(25)
            assert "The cgroup of the job on " in (cause := dumped(tmp_path))
            assert "had no CPU time left" in cause
    finally:
        os.kill(process.pid, signal.SIGTERM)
        live.ends(process, endless)
