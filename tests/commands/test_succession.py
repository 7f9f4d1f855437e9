"""Rank 0 dies, and another rank leads the job on: its records and checkpoints, its signals, its callbacks."""

import os
import signal
import time

import pytest

from tests.helpers import launcher, runs
from tests.helpers.live import ends, launch, left_in_shm, ranks_of, records_of, signalled, start
from tests.helpers.seeds import seeded
from tests.helpers.thinned import thinned

BLOCKS = ("train.reproducible=any_workers", "train.global_batch=24")


def after_kill(ulfm, n, tmp_path, *keys, epochs):
    """Start a run, and kill its rank 0 while it trains; return the launcher's process and the config's path."""
    path = runs.write(tmp_path / "run.yaml", epochs, "continue")
    process, pids = start(ulfm, n, path, *keys)
    os.kill(pids[0], signal.SIGKILL)
    return process, path


@pytest.mark.parametrize(
    ("sync", "collective"),
    thinned(
        [
            ("{mode: sync_ps}", "buffer"),
            ("{mode: sync_ps}", "shared"),
            ("{mode: sync_ps, server: colocated}", "object"),
            ("{mode: allreduce}", "hierarchical"),
        ],
        (0,),
    ),
)
def test_records_go_on_as_if_nobody_had_died(ulfm, tmp_path, sync, collective):
    """The patience of train.stop and the best checkpoint are those of all epochs; no epoch or step is missing."""
    draw = seeded("moments")
    stop = "train.stop={metric: loss, patience: 12, better: max}"  # the loss is never above that of epoch 1
    keys = (*BLOCKS, f"sync={sync}", "checkpoint.best=test_loss", "optimizer.lr=0.001", stop)
    (tmp_path / "still").mkdir()
    path = runs.write(tmp_path / "still" / "run.yaml", 30)
    assert launcher.train(ulfm, 2, path, "--quiet", *keys).status == 0
    more = (f"collective={collective}", "record.trace=true", "record.usage=true", "checkpoint.every_seconds=0.05")
    path = runs.write(tmp_path / "run.yaml", 30, "continue")
    steps = draw.randrange(1, 100), draw.randrange(200, 600)  # of 1,300: a shell may be late
    kills = ",".join(f"{step}:kill-{leader}-{draw.random() / 50:.3f}" for leader, step in enumerate(steps))
    words = ["-m", "tests.helpers.scaling", kills, path, "--quiet", "elastic.ranks=4", *keys, *more]
    ended = launcher.run(ulfm, 4, words)
    assert ended.status == 0, ended
    still, records = records_of(tmp_path / "still"), records_of(tmp_path)
    assert [record["epoch"] for record in records] == [record["epoch"] for record in still] == [*range(1, 14)]
    assert runs.hashes_of(tmp_path) == runs.hashes_of(tmp_path / "still")
    assert sum(len(record["lost"]) for record in records) == 2
    places = [(step["epoch"], step["step"]) for step in records_of(tmp_path, "steps.jsonl")]
    assert len(places) == len(set(places))
    (run,) = (tmp_path / "runs").iterdir()
    (other,) = (tmp_path / "still" / "runs").iterdir()
    for name in ("latest", "best"):
        assert (run / "checkpoints" / name).read_text() == (other / "checkpoints" / name).read_text()
    assert not left_in_shm()


@pytest.mark.full
def test_signals_reach_the_rank_that_leads_now(ulfm, tmp_path):
    process, path = after_kill(ulfm, 3, tmp_path, epochs=4000)
    seen = len(records_of(tmp_path))
    while len(records_of(tmp_path)) < seen + 3:
        time.sleep(0.05)
    for pid in ranks_of(path):  # as a scheduler does; Open MPI's launcher would end them at once
        os.kill(pid, signal.SIGTERM)
    err = ends(process, path)
    assert "psframe: SIGTERM: leaving after this step" in err
    assert "left on SIGTERM after" in err
    again = launcher.train(ulfm, 2, path, "--quiet", f"train.epochs={seen + 40}", "checkpoint.resume=auto")
    assert again.status == 0, again
    assert [record["epoch"] for record in records_of(tmp_path)] == [*range(1, seen + 41)]


def test_rank_that_may_not_write_the_folder_says_so(ulfm, tmp_path):
    path = runs.write(tmp_path / "run.yaml", 4000, "continue", steps=False)
    process, (pid, *_) = start(ulfm, 3, path, "sync=allreduce")
    os.kill(pid, signal.SIGSTOP)  # lest it misses the folder itself
    (run,) = (tmp_path / "runs").iterdir()
    run.rename(tmp_path / "away")
    os.kill(pid, signal.SIGKILL)
    err = ends(process, path)
    (line,) = (line for line in err.splitlines() if line.startswith("psframe:"))
    assert "the run directory must be writable for the rank that goes on in rank 0's place" in line


@pytest.mark.full
def test_rank_that_was_asked_to_leave_and_leads_ends_the_job(ulfm, tmp_path):
    """As a SIGTERM to rank 0 does; not by a job without rank 0."""
    path = runs.write(tmp_path / "run.yaml", 4000, "continue", steps=False)
    process, pids = start(ulfm, 4, path, "elastic.ranks=3")
    os.kill(pids[0], signal.SIGSTOP)  # lest it lets rank 1 leave first
    os.kill(pids[1], signal.SIGTERM)
    os.kill(pids[0], signal.SIGKILL)
    err = ends(process, path)
    assert process.returncode != 0
    assert "Traceback" not in err
    assert "left on SIGTERM after" in err


def test_epoch_that_rank_0_alone_has_recorded_is_recorded_once(ulfm, tmp_path):
    path = runs.write(tmp_path / "run.yaml", 3, "continue")
    words = ["-m", "tests.helpers.scaling", "900:1", path, "--quiet", "elastic.ranks=3", *BLOCKS]
    ended = launcher.run(ulfm, 3, words, KILL_RECORD="2")
    assert ended.status == 0, ended
    assert [record["epoch"] for record in records_of(tmp_path)] == [1, 2, 3]
    assert [step["step"] for step in records_of(tmp_path, "steps.jsonl")] == [*range(1, 301)]


@pytest.mark.parametrize("victim", thinned([0, 1, 3], (0,)))
def test_rank_may_die_while_all_leave(ulfm, tmp_path, victim):
    """The first, another one, a spare: the job has ended, and nobody is missed in it."""
    path = runs.write(tmp_path / "run.yaml", 2, "continue")
    words = ["-m", "tests.helpers.scaling", "900:1", path, "--quiet", "elastic.ranks=3", *BLOCKS]
    ended = launcher.run(ulfm, 4, words, KILL_END=str(victim))
    assert ended.status == 0, ended
    assert "psframe: " not in ended.err
    assert [record["lost"] for record in records_of(tmp_path)] == [[], []]


def test_rank_that_has_left_does_not_lead(ulfm, tmp_path):
    """Though its number is the lowest that is left: it has no state."""
    path = runs.write(tmp_path / "run.yaml", 4000, "continue", steps=False)
    process, pids = start(ulfm, 4, path, "elastic.ranks=4")
    os.kill(pids[1], signal.SIGTERM)
    for victim, n_ranks in ((0, 3), (None, 2)):
        while records_of(tmp_path)[-1]["n_ranks"] != n_ranks:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        if victim is not None:
            os.kill(pids[victim], signal.SIGKILL)
    signalled(ranks_of(path), signal.SIGTERM)
    err = ends(process, path)
    assert "rank 0 has died in epoch" in err
    assert "left on SIGTERM after" in err


@pytest.mark.full
@pytest.mark.parametrize("point", ["rename", "sync-folder", "prune:2"])
def test_best_checkpoint_that_rank_0_was_writing_is_there(ulfm, tmp_path, point):
    """It is killed while it writes the checkpoint of the first epoch, the best one."""
    path = runs.write(tmp_path / "run.yaml", 3, "continue")
    keys = (*BLOCKS, "sync=allreduce", "checkpoint={best: loss, keep: 1}", "optimizer.lr=0.0001")
    process = launch(ulfm.command(3, ["-m", "psframe.train", path, "--quiet", *keys, f"fault.crash_at={point}"]))
    err = ends(process, path)
    assert process.returncode == 0, err
    assert "rank 0 has died in epoch" in err
    assert [record["epoch"] for record in records_of(tmp_path)] == [1, 2, 3]
    (run,) = (tmp_path / "runs").iterdir()
    best = (run / "checkpoints" / "best").read_text()
    assert (run / "checkpoints" / best.strip()).is_file()


@pytest.mark.parametrize(
    ("sync", "collective"),
    thinned(
        [("{mode: sync_ps}", "buffer"), ("{mode: allreduce}", "shared"), ("{mode: sync_ps}", "hierarchical")], (0,)
    ),
)
def test_rank_0_may_die_while_ranks_change(ulfm, tmp_path, sync, collective):
    """Another member keeps the state, until all have it."""
    keys = (*BLOCKS, f"sync={sync}", f"collective={collective}")
    (tmp_path / "still").mkdir()
    path = runs.write(tmp_path / "still" / "run.yaml", 2)
    assert launcher.train(ulfm, 2, path, "--quiet", *keys).status == 0
    path = runs.write(tmp_path / "run.yaml", 2, "continue")
    words = ["-m", "tests.helpers.scaling", "60:4", path, "--quiet", "elastic.ranks=3", *keys]
    ended = launcher.run(ulfm, 5, words, KILL_AT="2")
    assert ended.status == 0, ended
    assert "rank 0 has died in epoch 1" in ended.err
    assert runs.hashes_of(tmp_path) == runs.hashes_of(tmp_path / "still")
