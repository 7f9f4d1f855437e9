"""Since when a job runs, by what /proc tells."""

import os
import time

import pytest

from psframe import startup

TICKS = os.sysconf("SC_CLK_TCK")


def process(proc, pid, name, parent, started_s):
    fields = ["S", str(parent), *["0"] * 17, str(int(started_s * TICKS))]
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(fields)} 0 0\n")


def test_the_launcher_above_counts(tmp_path):
    (tmp_path / "uptime").write_text("100.5 300.0\n")
    process(tmp_path, 7, "bash", 1, 3)
    process(tmp_path, 8, "mpirun", 7, 90)
    process(tmp_path, 9, "hydra_pmi_proxy", 8, 91)
    process(tmp_path, os.getpid(), "a (strange) name", 9, 92)
    assert startup.since_launch_s(tmp_path) == pytest.approx(10.5)


def test_without_a_launcher_the_process_itself_counts(tmp_path):
    (tmp_path / "uptime").write_text("100.5 300.0\n")
    process(tmp_path, 7, "bash", 1, 3)
    process(tmp_path, os.getpid(), "python", 7, 92)
    assert startup.since_launch_s(tmp_path) == pytest.approx(8.5)


@pytest.mark.parametrize("damage", ["nothing", "empty", "text"])
def test_a_proc_that_does_not_tell(tmp_path, damage):
    if damage != "nothing":
        process(tmp_path, os.getpid(), "python", 1, 92)
        (tmp_path / "uptime").write_text("" if damage == "empty" else "long")
    assert startup.since_launch_s(tmp_path) is None


def test_of_this_process():
    first = startup.since_launch_s()
    time.sleep(0.05)
    assert 0 < first < startup.since_launch_s()
