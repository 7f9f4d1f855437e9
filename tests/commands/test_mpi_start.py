"""A rank is killed before training begins, where MPI outlives ranks: the others do not wait for it, and say so once."""

import os
import subprocess
import sys
import threading

import pytest

from psframe.cluster import mpi_start, siblings
from psframe.cluster.mpi_start import Watch
from psframe.cluster.siblings import Siblings
from tests.helpers import launcher, runs
from tests.helpers.thinned import thinned

#: is a command, of which one rank dies at a point
DYING = """\
import os, runpy, signal, sys
_, point, rank, command, *words = sys.argv
def die(at):
    if at == point and os.environ["OMPI_COMM_WORLD_RANK"] == rank:
        os.kill(os.getpid(), signal.SIGKILL)
die("imports")
from psframe.cluster import mpi_start
start = mpi_start.start
def dies(*arguments):
    die("start")
    start(*arguments)
    die("started")
mpi_start.start = dies
if point == "compiles":
    import psframe.cluster.startup
    psframe.cluster.startup.begin_mpi()
    from psframe.train.assembly import assemble
    run = assemble.run
    assemble.run = lambda *arguments: (die("compiles"), run(*arguments))[1]
sys.argv = [command, *words]
runpy.run_module(command, run_name="__main__")
"""
JOB = {"PMIX_NAMESPACE": "job@1", "OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"}


def process(proc, pid, name, parent, state="S", **environ):
    (proc / str(pid)).mkdir(exist_ok=True)
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {state} {parent} {' '.join(['0'] * 20)}\n")
    (proc / str(pid) / "environ").write_text("".join(f"{key}={value}\0" for key, value in environ.items()))


@pytest.fixture
def proc(tmp_path):
    process(tmp_path, 7, "bash", 1)
    process(tmp_path, 8, "prterun", 7)
    for rank in range(3):
        process(tmp_path, 20 + rank, "python", 8, PMIX_NAMESPACE="job@1", OMPI_COMM_WORLD_RANK=rank)
    process(tmp_path, 30, "ssh", 8)
    process(tmp_path, 31, "python", 8, PMIX_NAMESPACE="job@2", OMPI_COMM_WORLD_RANK=1)
    process(tmp_path, 32, "python", 22, PMIX_NAMESPACE="job@1", OMPI_COMM_WORLD_RANK=2)  # started by a script
    return tmp_path


@pytest.mark.parametrize("me", [22, 32])
def test_ranks_of_a_node_are_the_launchers_children(proc, me):
    here = Siblings(proc, JOB, me)
    here.look()
    assert here.known == {0: 20, 1: 21, 2: 22}
    assert not here.lost
    assert not here.n_missing


@pytest.mark.parametrize("state", ["Z", "X", None])
def test_rank_that_ends_is_lost(proc, state):
    here = Siblings(proc, JOB, 22)
    here.look()
    if state:
        process(proc, 21, "python", 8, state)
    else:
        (proc / "21" / "stat").unlink()
    here.look()
    assert here.lost == {1}


def test_rank_never_seen_is_missing_and_not_lost_while_it_execs(proc):
    process(proc, 21, "prterun", 8)  # before it is a rank
    here = Siblings(proc, JOB, 22)
    here.look()
    assert here.n_missing == 1
    process(proc, 20, "python", 8)  # whose environment cannot be read just now
    here.look()
    assert not here.lost


def test_container_that_shows_no_launcher_misses_nobody(proc):
    process(proc, 22, "python", 1, **JOB)
    here = Siblings(proc, JOB, 22)
    here.look()
    assert not here.known
    assert not here.n_missing


@pytest.mark.parametrize("name", ["mpirun", "init"])
def test_launcher_may_be_a_container_s_first_process(proc, name):
    process(proc, 1, name, 0)
    process(proc, 22, "python", 1, **JOB)
    assert siblings.launcher_of(proc, 22) == int(name == "mpirun")


@pytest.mark.parametrize("damage", ["", "8 (prterun)", "8 (prterun) S prterun"])
def test_launcher_that_proc_does_not_tell_is_none(proc, damage):
    assert siblings.launcher_of(proc, 32) == 8
    (proc / "22" / "stat").write_text(damage)
    assert siblings.launcher_of(proc, 32) == 0
    assert siblings.launcher_of(proc, 99) == 0


def test_rank_that_tells_first_is_the_only_one(tmp_path):
    job = {**JOB, "PMIX_SERVER_TMPDIR": str(tmp_path)}
    assert [mpi_start.tells(job) for _ in range(3)] == [True, False, False]
    assert mpi_start.tells({**job, "PMIX_NAMESPACE": "job@2"})


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_0_tells_where_there_is_no_folder(tmp_path, rank):
    job = {**JOB, "PMIX_SERVER_TMPDIR": str(tmp_path / "none"), "OMPI_COMM_WORLD_LOCAL_RANK": str(rank)}
    assert mpi_start.tells(job) == (rank == 0)


@pytest.mark.parametrize("by", ["kernel", "looks"])
def test_watch_ends_with_start_and_lives_through_nothing_else(proc, monkeypatch, by):
    """Until a rank ends, of which the kernel tells, or a look where that cannot."""
    ended, told = threading.Event(), []
    rank = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process(proc, rank.pid, "python", 8, PMIX_NAMESPACE="job@1", OMPI_COMM_WORLD_RANK=1)
    (proc / "21" / "stat").unlink()
    if by == "looks":
        monkeypatch.delattr(os, "pidfd_open", raising=False)
    for pid in (20, 22):  # which are none
        process(proc, pid, "python", 9)
    process(proc, os.getpid(), "python", 8, PMIX_NAMESPACE="job@1", OMPI_COMM_WORLD_RANK=2)
    monkeypatch.setattr(Watch, "_end", lambda watch, text: (told.append(text), ended.set()))
    monkeypatch.setattr(mpi_start, "GRACE_S", 0.0)
    ranks = Siblings(proc, {**JOB, "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, os.getpid())
    with Watch(ranks, lambda after_s: None):
        pass
    assert not told
    with Watch(ranks, lambda after_s: None):
        (proc / str(rank.pid) / "stat").unlink()
        rank.communicate(b"\n")
        assert ended.wait(30)
    assert told[0].startswith("rank 1 has died on ")


@pytest.mark.parametrize(
    ("point", "rank", "said"),
    thinned(
        [
            ("imports", 1, "while MPI started, before anything was trained; start again"),
            ("start", 0, "while MPI started, before anything was trained; start again"),
            ("started", 1, "before anything was trained; start again"),
            ("compiles", 2, "before anything was trained; start again"),
        ],
        (0, 2),
    ),
)
def test_rank_dying_before_training_ends_job_in_one_sentence(ulfm, tmp_path, point, rank, said):
    path = runs.write(tmp_path / "loss.yaml", 1, "continue")
    ended = dying(ulfm, tmp_path, point, rank, "psframe.train", path, "--quiet")
    assert ended.status not in (0, 2), ended
    (line,) = (line for line in ended.err.splitlines() if line.startswith("psframe:"))
    assert line.endswith(said)
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").glob("*/metrics.jsonl"))


@pytest.mark.full
@pytest.mark.parametrize("words", [["psframe.bench", "step"], ["psframe.doctor"], ["psframe.predict.ranks", "node"]])
def test_rank_dying_once_mpi_started_ends_every_command_in_one_sentence(ulfm, tmp_path, words):
    ended = dying(ulfm, tmp_path, "started", 1, *words)
    assert ended.status not in (0, 2), ended
    (line,) = (line for line in ended.err.splitlines() if line.startswith("psframe:"))
    assert line.endswith("before anything was trained; start again")
    assert not ended.out


def dying(ulfm, tmp_path, point, rank, *words):
    """Run a command of which one of three ranks dies at a point; return how it ended."""
    (tmp_path / "dying.py").write_text(DYING)
    arguments = [str(tmp_path / "dying.py"), point, str(rank), *words]
    ended = launcher.run(ulfm, 3, arguments, timeout_s=60, PYTHONPATH=str(launcher.ROOT))
    assert not ended.timed_out, ended
    assert "Traceback" not in ended.err
    return ended
