"""A host that is cut off, or stopped as a whole: each node writes what it did, and ``psframe why`` names the host."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests import hosts
from tests.helpers import launcher, live, runs
from tests.helpers.asked_why import first_cause, why
from tests.helpers.launcher import ROOT


@pytest.fixture
def two():
    if reason := hosts.missing("1gbit"):
        pytest.skip(reason)
    with hosts.Hosts(2, "1gbit") as made:
        yield made


def begin(mpi, two, tmp_path, deadline_s=4):
    path = runs.write(tmp_path / "hosts.yaml", 1000)
    keys = ("fault.late_s=0", f"sync={{mode: allreduce, deadline_s: {deadline_s}}}")
    words = ["-m", "psframe.train", path, "--quiet", *keys]
    process = live.launch(two.on_first(two.mpi(mpi, (2, 2)).command(4, words)), **two.environment)
    live.trains(process, path)
    return process, path


@pytest.mark.full
def test_host_that_is_cut_off_is_the_first_cause(mpich, two, tmp_path):
    process, path = begin(mpich, two, tmp_path)
    two.link(1, "down")
    assert "did not come to an exchange" in live.says(process, "psframe:")
    assert process.wait(300) != 0
    two.link(1, "up")
    live.ends(process, path)
    assert f"Node 1 ({two.names[1]}) did not come" in first_cause(why(tmp_path))


@pytest.mark.full
def test_host_whose_ranks_are_all_stopped_is_the_first_cause(mpich, two, tmp_path):
    process, path = begin(mpich, two, tmp_path)
    stopped = live.ranks_of(path)[2:]
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    told = live.says(process, "psframe:")
    process.wait(300)
    for pid in set(live.ranks_of(path)).intersection(stopped):
        os.kill(pid, signal.SIGKILL)
    live.ends(process, path)
    assert f"node 1 ({two.names[1]}) did not come" in told
    assert f"Node 1 ({two.names[1]}) did not come" in first_cause(why(tmp_path))


@pytest.mark.full
@pytest.mark.wide  # other tests would be the cause
def test_slow_link_is_the_first_cause(mpich, two, tmp_path):
    process, path = begin(mpich, two, tmp_path, deadline_s=60)
    two.slow(1, "1mbit")
    (run,) = (tmp_path / "runs").glob("hosts-*")
    words = [sys.executable, "-m", "psframe.doctor.dump", str(run)]
    time.sleep(12)  # until the events before are forgotten
    assert subprocess.run(words, timeout=120, cwd=ROOT).returncode == 0
    cause = first_cause(why(tmp_path))
    os.kill(process.pid, signal.SIGTERM)
    live.ends(process, path)
    assert "The exchange between 2 nodes takes " in cause


STARTS = """\
import os, runpy, signal, sys
from psframe.train.assembly import assemble
before = assemble.run
def stop(cluster, *given):
    if cluster.node:
        os.kill(os.getpid(), signal.SIGSTOP)
    return before(cluster, *given)
assemble.run = stop
sys.argv[1:] = sys.argv[2:]
sys.argv[0] = "psframe.train"
runpy.run_module("psframe.train", run_name="__main__")
"""


@pytest.mark.full
def test_host_that_is_lost_before_training_begins_ends_the_job(mpich, two, tmp_path):
    path, script = runs.write(tmp_path / "hosts.yaml", 1000), tmp_path / "stops.py"
    script.write_text(STARTS)
    words = [script, "-", path, "--quiet", "sync={mode: allreduce, deadline_s: 2}"]
    env = {**two.environment, "PSFRAME_START_S": "8", "PYTHONPATH": str(launcher.ROOT)}
    process = live.launch(two.on_first(two.mpi(mpich, (2, 2)).command(4, words)), **env)
    told = live.says(process, "psframe:")
    process.wait(60)
    for pid in live.ranks_of(path):
        os.kill(pid, signal.SIGKILL)
    live.ends(process, path)
    assert "a rank of another node did not come to MPI " in told
    assert "for 8 s (PSFRAME_START_S)" in told
