"""Faults of every kind in jobs of real ranks: the job ends, what all did is written, and ``psframe why`` names it."""

import os
import re
import signal
import subprocess
import sys

import pytest

from tests.helpers import launcher
from tests.helpers.asked_why import config, first_cause, wait_for_file, why
from tests.helpers.live import ends, left_in_shm, ranks_of, start, trains
from tests.helpers.thinned import thinned

DEADLINE_S = 6  # a rank of a busy machine is late by some seconds
LONG_S = 300  # where nothing waits for it


@pytest.fixture
def faulty(tmp_path):
    return config(tmp_path, "faulty", DEADLINE_S)


@pytest.fixture
def endless(tmp_path):
    return config(tmp_path, "endless", DEADLINE_S)


def stopped(mpi, config, victim, *keys):
    """Stop one of three ranks that train; return what the job said when it had ended."""
    process, pids = start(mpi, 3, config, *keys)
    os.kill(pids[victim], signal.SIGSTOP)
    try:
        err = ends(process, config)
    finally:
        for pid in set(ranks_of(config)).intersection(pids):
            os.kill(pid, signal.SIGKILL)
    assert process.returncode != 0
    return err


@pytest.mark.parametrize("collective", thinned(["shared", "object", "buffer"], (1,)))
@pytest.mark.parametrize("victim", thinned([0, 1], (1,)))
def test_stopped_rank_is_named_inside_calls_of_mpi(mpich, endless, tmp_path, collective, victim):
    err = stopped(mpich, endless, victim, f"collective={collective}")
    (line,) = (line for line in err.splitlines() if "psframe:" in line)
    assert re.search(rf"rank {victim} did not come to .* for {DEADLINE_S} s \(sync.deadline_s\)", line)
    assert "psframe why" in line
    wait_for_file(tmp_path)
    assert first_cause(why(tmp_path)).startswith(f"1. Rank {victim} (")
    assert "was stopped by a signal" in first_cause(why(tmp_path))
    assert not left_in_shm()


def test_killed_rank_leaves_what_it_did(mpi, endless, tmp_path):
    process, pids = start(mpi, 3, endless, f"sync.deadline_s={LONG_S}")
    os.kill(pids[1], signal.SIGKILL)
    ends(process, endless)
    wait_for_file(tmp_path)
    assert first_cause(why(tmp_path)).startswith("1. Rank 1 (")
    assert " died in " in first_cause(why(tmp_path))
    assert not left_in_shm()


@pytest.mark.parametrize(
    ("fault", "said"),
    thinned(
        [
            ("loop:1", "does not return from your code at faulty.py, line"),
            ("lock:0", "waits in your code at faulty.py, line"),
            ("raise:2", "ValueError: a layer of mine has raised. It was raised in faulty.py, line"),
        ],
        (2,),
    ),
)
def test_code_of_a_user_that_does_not_return_is_named_with_its_line(mpich, faulty, tmp_path, fault, said):
    ended = launcher.run(mpich, 3, ["-m", "psframe.train", faulty, "--quiet"], PSFRAME_FAULT=fault)
    assert ended.status != 0, ended
    assert not ended.timed_out
    wait_for_file(tmp_path)
    cause = first_cause(why(tmp_path))
    assert cause.startswith(f"1. Rank {fault[-1]} ")
    assert said in cause


@pytest.mark.parametrize("odd", thinned([0, 1], (1,)))
def test_calls_of_mpi_that_do_not_fit_are_named(mpich, faulty, tmp_path, odd):
    words = ["-m", "psframe.train", faulty, "--quiet", "collective=tests.helpers.faulty:Collective"]
    ended = launcher.run(mpich, 3, words, PSFRAME_FAULT=f"other-call:{odd}")
    assert not ended.timed_out
    assert f"rank {odd} did not come to MPI Allreduce" in ended.err
    wait_for_file(tmp_path)
    cause = first_cause(why(tmp_path))
    assert "in ways that do not fit" in cause
    assert f"rank {odd} (" in cause.partition(" is in ")[0]


@pytest.mark.full
def test_dataset_that_waits_for_ever_ends_the_job(mpich, faulty, tmp_path):
    words = ["-m", "psframe.train", faulty, "--quiet"]
    (tmp_path / "runs").mkdir()
    ended = launcher.run(mpich, 2, words, PSFRAME_FAULT="read:0")
    assert not ended.timed_out
    assert "rank 0 did not come to the other ranks of its node for 6 s" in ended.err
    assert "waits in your code at faulty.py" in first_cause(why(tmp_path, folder=tmp_path / "runs"))


STOPS = """\
import atexit, os, runpy, signal, sys
_, point, *words = sys.argv
def stop():
    if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK")) == "1":
        os.kill(os.getpid(), signal.SIGSTOP)
stop() if point == "start" else atexit.register(stop)
sys.argv = ["psframe.train", *words]
runpy.run_module("psframe.train", run_name="__main__")
"""


@pytest.fixture
def stops(tmp_path):
    """A command of which rank 1 is stopped where it starts, or ends."""
    path = tmp_path / "stops.py"
    path.write_text(STOPS)
    return str(path)


@pytest.mark.each_mpi
def test_rank_stopped_before_mpi_starts_is_named(mpi, config, stops, tmp_path):
    env = {"PSFRAME_START_S": "5", "PYTHONPATH": f"{launcher.ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    ended = launcher.run(mpi, 3, [stops, "start", config], cwd=tmp_path, **env)
    assert not ended.timed_out
    (line,) = (line for line in ended.err.splitlines() if "psframe:" in line)
    assert "MPI must start within 5 s" in line
    assert "rank 1 was stopped by a signal" in line
    assert "rank 1 was stopped" in first_cause(why(tmp_path, folder=tmp_path)).lower().replace(" (vm)", "")


@pytest.mark.full
def test_rank_that_does_not_end_is_ended(mpich, config, stops, tmp_path):
    env = {"PYTHONPATH": f"{launcher.ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    ended = launcher.run(mpich, 3, [stops, "end", config, "sync.deadline_s=2"], cwd=tmp_path, **env)
    assert not ended.timed_out
    assert "rank 1 did not end after the work was done; the job is ended" in ended.err
    assert first_cause(why(tmp_path)).startswith("1. Rank 1 (")


def test_healthy_job_that_is_asked_is_accused_of_nothing(mpich, endless, tmp_path):
    process, _ = start(mpich, 3, endless, f"sync.deadline_s={LONG_S}")
    words = [
        sys.executable,
        "-m",
        "psframe.doctor.dump",
        "--timeout",
        "100",
        str(next((tmp_path / "runs").glob("*-*"))),
    ]
    asked = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=launcher.ROOT)
    assert asked.returncode == 0, asked.stderr
    assert process.poll() is None
    lines = why(tmp_path)
    os.kill(process.pid, signal.SIGTERM)
    ends(process, endless)
    told = [
        words for words in ("return", "waits", "stopped", "died", "do not fit") if any(words in line for line in lines)
    ]
    assert not told, lines  # other tests may take its cores


@pytest.mark.full
def test_supervisor_lets_a_keeper_write_before_it_starts_again(mpich, endless, tmp_path):
    """It kills what a launcher has left, and would kill the keeper, too."""
    start_words = " ".join(map(str, (mpich.prefix / "bin" / "mpirun", *mpich.flags)))
    words = [sys.executable, "-m", "psframe.run", "-n", "2", "--restarts", "0", "--mpirun", start_words, endless]
    process = subprocess.Popen(words, cwd=launcher.ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    trains(process, endless)
    os.kill(ranks_of(endless)[1], signal.SIGKILL)
    _, err = process.communicate(timeout=120)
    assert process.returncode != 0, err
    assert list((tmp_path / "runs").glob("*/incident-1.json")), err
    assert not ranks_of(endless)
