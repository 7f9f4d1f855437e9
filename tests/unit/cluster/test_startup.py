"""Since when a job runs, by what /proc tells."""

import os
import subprocess
import sys
import time

import pytest

from psframe.cluster import startup
from tests.helpers.launcher import installed

TICKS = os.sysconf("SC_CLK_TCK")


def process(proc, pid, name, parent, started_s):
    fields = ["S", str(parent), *["0"] * 17, str(int(started_s * TICKS))]
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {' '.join(fields)} 0 0\n")


def test_launcher_above_counts(tmp_path):
    (tmp_path / "uptime").write_text("100.5 300.0\n")
    process(tmp_path, 7, "bash", 1, 3)
    process(tmp_path, 8, "mpirun", 7, 90)
    process(tmp_path, 9, "hydra_pmi_proxy", 8, 91)
    process(tmp_path, os.getpid(), "a (strange) name", 9, 92)
    assert startup.since_launch_s(tmp_path) == pytest.approx(10.5)


def test_process_without_a_launcher_counts(tmp_path):
    (tmp_path / "uptime").write_text("100.5 300.0\n")
    process(tmp_path, 7, "bash", 1, 3)
    process(tmp_path, os.getpid(), "python", 7, 92)
    assert startup.since_launch_s(tmp_path) == pytest.approx(8.5)


@pytest.mark.parametrize("damage", ["nothing", "empty", "text"])
def test_proc_that_does_not_tell(tmp_path, damage):
    if damage != "nothing":
        process(tmp_path, os.getpid(), "python", 1, 92)
        (tmp_path / "uptime").write_text("" if damage == "empty" else "long")
    assert startup.since_launch_s(tmp_path) is None


def test_startup_of_this_process():
    first = startup.since_launch_s()
    time.sleep(0.05)
    assert 0 < first < startup.since_launch_s()


@pytest.mark.parametrize(
    ("environ", "n_ranks", "library", "told"),
    [
        ({"PMI_SIZE": "2"}, 1, "Open MPI v5", True),
        ({"OMPI_COMM_WORLD_SIZE": "64"}, 1, "Intel(R) MPI", True),
        ({"SLURM_STEP_NUM_TASKS": "3"}, 1, "MPICH", True),
        ({"PMI_SIZE": "2"}, 2, "MPICH", False),
        ({"PMI_SIZE": "1", "SLURM_NTASKS": "4"}, 1, "MPICH", False),  # one rank in an allocation for several
        ({"PMI_SIZE": "4", "SLURM_STEP_NUM_TASKS": "1"}, 4, "MPICH", False),
        ({"PMI_SIZE": "x"}, 1, "Open MPI v5", False),
        ({}, 1, "MPICH", False),
        ({"PMI_SIZE": "2"}, 0, "Open MPI v4", False),  # srun, say, whose PMI-2 it may know
        ({"OMPI_COMM_WORLD_SIZE": "2"}, 0, "Open MPI v5", False),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, 0, "MPICH Version: 5\nMPICH configure: --with-pmix=/usr", False),
        ({"OMPI_COMM_WORLD_SIZE": "2"}, 0, "MPICH Version: 5\nMPICH configure: --with-pm=hydra", True),
    ],
)
def test_launcher_of_another_mpi_is_told(environ, n_ranks, library, told):
    assert bool(startup.foreign_launcher(n_ranks, library, environ)) == told


WITHOUT = """\
import runpy, sys
sys.modules["mpi4py"] = None
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("words", [["psframe.train"], ["psframe.bench", "step"], ["psframe.predict.ranks", "node"]])
def test_missing_mpi_is_told_in_a_sentence(words):
    ended = subprocess.run([sys.executable, "-c", WITHOUT, *words], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 2, ended
    assert ended.stderr.startswith("psframe: an MPI must be installed, got none on ")
    assert len(ended.stderr.splitlines()) == 1, ended


@pytest.mark.parametrize("module", ["psframe.bench.__main__", "psframe.doctor", "psframe.cluster.begin"])
def test_numpy_is_not_imported_before_threads_are_limited(module):
    code = f"import sys, {module}; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


@pytest.mark.parametrize(("launcher", "python"), [("mpich", "openmpi"), ("openmpi", "mpich")])
@pytest.mark.parametrize("command", ["train", "bench"])
def test_mpis_mixed_end_with_one_sentence(launcher, python, command, config, tmp_path):
    starts, imports = installed(launcher), installed(python)
    if not (starts and imports):
        pytest.skip("takes both MPIs: bash launch/test.sh installs them")
    words = [starts.prefix / "bin" / "mpirun", *starts.flags, "-n", "2", imports.python, "-m", f"psframe.{command}"]
    what = [config] if command == "train" else ["step"]
    ended = subprocess.run([*words, *what], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    assert ended.returncode == 2, ended
    assert ended.stderr.count("psframe:") == 1, ended
    assert "the launcher and mpi4py must be of one MPI, got 2 process(es)" in ended.stderr
    assert "suspicious" not in ended.stderr
    assert not (tmp_path / "runs").exists()
