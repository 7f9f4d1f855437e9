"""``psframe scale``, signals and errors: a job changes on request, or says why not, and its spares end with it."""

import os
import signal
import subprocess
import sys
import time

import pytest

from psframe.api.scale import alone
from psframe.record import scaling
from tests.helpers import launcher, live, runs
from tests.helpers.live import ends, left_in_shm, signalled
from tests.helpers.thinned import thinned

BLOCKS = ("train.reproducible=any_workers", "train.global_batch=24")


def scale(*words):
    """Run the command; return its status, what it printed and its error."""
    command = [sys.executable, "-m", "psframe", "scale", *map(str, words)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, cwd=launcher.ROOT)
    return ended.returncode, ended.stdout, ended.stderr


def begin(mpi, tmp_path, *keys, n=3, epochs=4000):
    path = runs.write(tmp_path / "run.yaml", epochs, steps=False)
    process, ranks = live.start(mpi, n, path, *keys)
    (run,) = (tmp_path / "runs").iterdir()
    return process, path, ranks, run


def test_command_changes_a_running_job_and_says_what_it_cannot(mpich, tmp_path):
    process, path, ranks, run = begin(mpich, tmp_path, "elastic.ranks=2", "sync.mode=allreduce")
    status, out, err = scale(run, "--to", 3)
    assert (status, err) == (0, "")
    assert out.startswith("3 ranks train, 2 did before: from epoch ")
    assert scale(run, "--to", 3)[:2] == (0, "3 ranks train, as before\n")
    host = os.uname().nodename
    for words, expected in (
        (("--to", 4), "--to must be at most the ranks of the job, 3, got 4"),
        (("--drain", "nowhere"), "--drain must name hosts of the job, got 'nowhere'"),
        (("--drain", host), f"--drain must leave the host of rank 0, which keeps the parameters, got '{host}'"),
    ):
        status, out, err = scale(run, *words)
        assert (status, out) == (2, "")
        assert expected in err
        assert err.count("\n") == 1
    os.kill(ranks[0], signal.SIGUSR1)
    ends(process, path)
    status, _, err = scale(run, "--to", 2)
    assert status == 2
    assert "in which no process does" in err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "it must name a run, and --to N or --drain HOST"),
        (("nowhere", "--to", "2"), "RUN must be the folder of a run, got 'nowhere'"),
        (("nowhere", "--to", "0"), "--to must be 1 or more, got 0"),
        (("nowhere", "--to", "2", "--timeout", "0"), "--timeout must be above 0"),
    ],
)
def test_mistakes_are_told_in_one_line(words, expected):
    status, _, err = scale(*words)
    assert status == 2
    assert expected in err
    assert "Traceback" not in err


@pytest.mark.full
def test_job_without_spares_and_a_mode_that_needs_more_are_told(mpich, tmp_path):
    process, path, ranks, run = begin(mpich, tmp_path)
    status, _, err = scale(run, "--to", 2)
    assert status == 2
    assert "RUN must have been begun with elastic.ranks" in err
    os.kill(ranks[0], signal.SIGUSR1)
    ends(process, path)


def test_request_that_the_job_does_not_answer_is_withdrawn(mpich, tmp_path):
    process, path, ranks, run = begin(mpich, tmp_path, "elastic.ranks=2")
    with alone(run):
        status, _, err = scale(run, "--to", 3)
        assert status == 2
        assert "one command at a time may ask a job" in err
    status, _, err = scale(run, "--to", 2_000_000_000)
    assert status == 2
    assert "a job can be asked for ranks by number" in err
    os.kill(ranks[0], signal.SIGSTOP)
    status, _, err = scale(run, "--to", 3, "--timeout", 0.5)
    os.kill(ranks[0], signal.SIGCONT)
    assert status == 2
    assert "the request is withdrawn" in err
    assert scale(run, "--to", 2)[:2] == (0, "2 ranks train, as before\n")
    os.kill(ranks[0], signal.SIGUSR1)
    ends(process, path)


@pytest.mark.full
def test_roles_that_fewer_ranks_cannot_fill_are_refused(mpich, tmp_path):
    process, path, ranks, run = begin(
        mpich, tmp_path, "elastic.ranks=3", "sync={mode: sync_ps, servers: 2}", "collective=buffer"
    )
    status, _, err = scale(run, "--to", 2)
    assert status == 2
    assert "sync.servers must leave a worker, and be at most 1 of 2 ranks" in err
    os.kill(ranks[0], signal.SIGUSR1)
    ends(process, path)


@pytest.mark.parametrize("sign", thinned([signal.SIGINT, signal.SIGTERM, signal.SIGUSR1], (2,)))
def test_spares_leave_with_the_job(mpich, tmp_path, sign):
    """A signal to all of them is heeded by those that train, and continued from."""
    process, path, ranks, run = begin(mpich, tmp_path, "elastic.ranks=2", "checkpoint.every_epochs=1")
    signalled(reversed(ranks), sign)
    err = ends(process, path)
    assert f"left on {sign.name} after" in err
    assert not left_in_shm()
    ended = launcher.train(mpich, 3, path, "--quiet", "elastic.ranks=2", f"checkpoint.resume={run}", "train.epochs=1")
    assert "must have epochs left" in ended.err


@pytest.mark.parametrize("term_at", thinned([1, 2], (1,)))
def test_signal_within_a_change_is_heeded_after_it(mpich, tmp_path, term_at):
    path = runs.write(tmp_path / "run.yaml", 30)
    words = ["-m", "tests.helpers.scaling", "20:3", path, "--quiet", "elastic.ranks=2", "sync.mode=allreduce"]
    ended = launcher.run(mpich, 3, words, TERM_AT=str(term_at))
    assert ended.status == 143, ended
    assert ended.err.count("psframe: left on SIGTERM after") == 1
    assert list((tmp_path / "runs").glob("*/checkpoints/*.h5"))


@pytest.mark.full
def test_spare_that_is_asked_alone_is_not_called(mpich, tmp_path):
    process, path, ranks, run = begin(mpich, tmp_path, "elastic.ranks=2")
    os.kill(ranks[2], signal.SIGTERM)
    until = time.monotonic() + 60
    while scale(run, "--to", 3)[0] == 0:  # it may come before rank 0 knows, and then leaves
        assert time.monotonic() < until
    os.kill(ranks[0], signal.SIGUSR1)
    ends(process, path)


@pytest.mark.full
def test_member_that_is_asked_alone_leaves_and_does_not_come_back(mpich, tmp_path):
    process, path, ranks, run = begin(mpich, tmp_path, "elastic.ranks=3", "sync.mode=allreduce")
    os.kill(ranks[1], signal.SIGTERM)
    until = time.monotonic() + 60
    while live.lines_of(run)[-1]["n_ranks"] == 3:
        assert time.monotonic() < until
        time.sleep(0.05)
    status, _, err = scale(run, "--to", 3)
    assert status == 2
    assert "--to must be at most the ranks of the job that are not drained, 2, got 3" in err
    os.kill(ranks[0], signal.SIGUSR1)
    ends(process, path)
    assert live.lines_of(run)[-1]["n_ranks"] == 2
    assert not [name for name in os.listdir(run) if name.startswith("leave-")]


@pytest.mark.full
def test_changes_leave_nothing_open(mpich, tmp_path):
    """Nor those of a network whose workers meet, and have gates of their own."""
    keys = ("elastic.ranks=2", *BLOCKS, "model=tests.helpers.tiny:meeting", "sync.mode=allreduce")
    process, path, _, run = begin(mpich, tmp_path, *keys)

    def held():
        return [rank.num_fds() for rank in live.processes_of(path)]

    before = None
    for n in (3, 1, 2) * 5:
        asked = scaling.ask(run, n, [])
        until = time.monotonic() + 60
        while not scaling.answered(run, asked):
            assert time.monotonic() < until
            time.sleep(0.01)
        before = before or held()
    assert all(now <= then + 6 for then, now in zip(before, held(), strict=True)), (before, held())
    os.kill(live.ranks_of(path)[0], signal.SIGUSR1)
    ends(process, path)


def test_rank_that_others_cannot_do_without_stays(mpich, tmp_path):
    keys = ("elastic.ranks=3", "sync={mode: sync_ps, servers: 2}", "collective=buffer")
    process, path, ranks, run = begin(mpich, tmp_path, *keys)
    os.kill(ranks[2], signal.SIGTERM)
    assert "rank 2 was asked to leave, and stays: sync.servers must" in live.says(process, "psframe: warning", 60)
    os.kill(ranks[0], signal.SIGUSR1)
    ends(process, path)
    assert live.lines_of(run)[-1]["n_ranks"] == 3


@pytest.mark.parametrize("victim", thinned([0, 1, 2], (2,)))
def test_killed_rank_ends_the_job_with_its_spares(mpi, tmp_path, victim):
    process, path, ranks, _ = begin(mpi, tmp_path, "elastic.ranks=2")
    os.kill(ranks[victim], signal.SIGKILL)
    ends(process, path)
    assert process.returncode != 0
    assert not left_in_shm()


@pytest.mark.full
def test_error_of_the_members_ends_the_spares_with_one_message(mpich, tmp_path):
    path = runs.write(tmp_path / "run.yaml", 5)
    ended = launcher.train(mpich, 4, path, "--quiet", "elastic.ranks=2", "optimizer.lr=1e30")
    assert ended.status == 2, ended
    assert ended.err.count("psframe:") == 1
    assert "gradients must be finite" in ended.err
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (("elastic.ranks=5",), "elastic.ranks must be at most the ranks of the job, 3, got 5"),
        (("elastic.ranks=2", "parallel.pipeline=3"), "elastic.ranks is for ranks with the whole network"),
        (
            ("elastic.ranks=2", "sync={mode: sync_ps, servers: 2}", "collective=buffer"),
            "sync.servers must leave a worker, and be at most 1 of 2 ranks",
        ),
    ],
)
def test_ranks_at_first_that_cannot_be_are_refused(pool, tmp_path, keys, expected):
    ended = pool(3).train(runs.write(tmp_path / "run.yaml", 1), *keys)
    assert ended.status == 2
    assert expected in ended.err
