"""Checkpoints written while training goes on: from a copy, one at a time, and what goes wrong is told once."""

import os
import subprocess
from threading import Event
from types import SimpleNamespace

import pytest

from psframe.config.schema import Checkpoint
from psframe.errors import UserError
from psframe.record import checkpoint
from psframe.record.run_dir import RunDir
from psframe.record.writer import Writer
from psframe.train.checkpointer import Checkpointer
from tests.helpers.checkpoints import LAYOUT, is_saved, mounted, newest, saved
from tests.helpers.launcher import train
from tests.helpers.said import told
from tests.helpers.thinned import thinned


@pytest.fixture
def run_dir(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    with open(tmp_path / "lock", "w") as lock:
        yield RunDir(tmp_path, lock)


class Held:
    """Holds the thread at a point until it is let go."""

    def __init__(self, point):
        self.point, self.there, self.go = point, Event(), Event()

    def __call__(self, point):
        if point == self.point:
            self.there.set()
            assert self.go.wait(60)


def test_checkpoint_is_what_was_there_when_it_was_saved(run_dir, tmp_path):
    held = Held("write")
    writer = Writer(run_dir, 2, held)
    now = saved(1)
    writer.save(now)
    assert writer.busy
    now.params[:] = now.state[:] = 0
    held.go.set()
    writer.close()
    assert not writer.busy
    found, _ = newest(tmp_path)
    is_saved(found, 1)


def test_next_checkpoint_waits_and_takes_no_new_memory(run_dir, tmp_path):
    held = Held("rename")
    writer = Writer(run_dir, 1, held)
    writer.save(saved(1))
    kept = writer.params, writer.state
    assert held.there.wait(60)
    assert newest(tmp_path) == (None, [])
    held.go.set()
    for epoch in (2, 3):
        writer.save(saved(epoch))
        assert newest(tmp_path)[0].epoch >= epoch - 1, "the one before was not durable yet"
    writer.close()
    is_saved(newest(tmp_path)[0], 3)
    assert writer.params is kept[0]
    assert writer.state is kept[1]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_copy_that_was_taken_is_not_written_before_it_is_said(run_dir, tmp_path):
    writer = Writer(run_dir, 1)
    writer.take(saved(1))
    writer.start()
    writer.take(saved(2))
    writer.close()
    assert newest(tmp_path)[0].epoch == 1


def test_full_disk_is_told_once_by_whatever_comes_next(run_dir, tmp_path):
    for then in ("wait", "check", "close", "take"):
        writer = Writer(run_dir, 1)
        with mounted(tmp_path / "checkpoints", "-t", "tmpfs", "-o", "size=4k", "none"):
            writer.save(saved(1))
            while writer.busy:  # `check` alone does not wait
                writer.thread.submit(int).result()
            with pytest.raises(UserError, match=r"must stay writable, got .*No space left on device"):
                getattr(writer, then)(*[saved(2)] * (then == "take"))
        writer.check()
        if then == "close":
            continue
        writer.save(saved(3))
        writer.close()
        is_saved(newest(tmp_path)[0], 3)


def test_defect_is_no_mistake_of_the_users(run_dir):
    def at(point):
        raise ZeroDivisionError("a defect")

    writer = Writer(run_dir, 1, at)
    writer.save(saved(1))
    with pytest.raises(ZeroDivisionError):
        writer.close()


def _keeps(checkpointer, epoch):
    of = saved(epoch)
    checkpointer.save(SimpleNamespace(layout=LAYOUT, params=of.params, stays=False), of.state, of.epoch, of.step, 0)


def _diverges_where_nothing_can_be_written(checkpointer, folder):
    with checkpointer.closing():
        folder.rename(folder.with_name("gone"))
        _keeps(checkpointer, 5)
        raise UserError("diverged")


def test_what_fails_closes_once_all_is_durable(run_dir, tmp_path):
    checkpointer = Checkpointer(run_dir, Checkpoint(keep=1))
    for epoch in (1, 2):
        with checkpointer.closing():
            _keeps(checkpointer, epoch)
    with pytest.raises(UserError, match=r"^diverged$"), checkpointer.closing():
        _keeps(checkpointer, 3)
        raise UserError("diverged")
    assert newest(tmp_path)[0].epoch == 3
    checkpointer = Checkpointer(run_dir, Checkpoint(keep=1))
    with checkpointer.closing():
        _keeps(checkpointer, 4)
    checkpointer.close()
    assert newest(tmp_path)[0].epoch == 4
    checkpointer = Checkpointer(run_dir, Checkpoint(keep=1))
    with pytest.raises(UserError, match=r"^diverged; besides, the run directory must stay writable"):
        _diverges_where_nothing_can_be_written(checkpointer, tmp_path / "checkpoints")


def test_keeper_knows_what_is_written_and_what_failed(run_dir, tmp_path):
    held = Held("seal")
    checkpointer = Checkpointer(run_dir, Checkpoint(every_seconds=1e-9), held)
    assert checkpointer.due()
    _keeps(checkpointer, 1)
    assert not checkpointer.due()
    assert not checkpointer.failed
    (tmp_path / "checkpoints").rename(tmp_path / "gone")
    held.go.set()
    with pytest.raises(FileNotFoundError):
        checkpointer.writer.under_way.result()
    assert checkpointer.failed
    with pytest.raises(UserError, match="must stay writable"):
        _keeps(checkpointer, 2)
    assert not checkpointer.failed


@pytest.mark.parametrize(("every", "kilobytes", "left"), thinned([(1, 400, 2), (2, 200, 0)], (1,)))
def test_full_disk_ends_every_rank_with_one_sentence(mpi, config, tmp_path, every, kilobytes, left):
    """Also where it is the last checkpoint, which no next one waits for; one takes 300 kB."""
    runs = tmp_path / "runs"
    with mounted(runs, "-t", "tmpfs", "-o", f"size={kilobytes}k", "none"):
        wide = "model={name: 'tests.helpers.tiny:build', width: 2000}"
        ended = train(mpi, 3, config, wide, f"checkpoint.every_epochs={every}")
        assert (ended.status, ended.timed_out) == (2, False), ended
        (line,) = told(ended)
        assert "the run directory must stay writable" in line
        assert "No space left on device" in line
        assert "Traceback" not in ended.err
        (run,) = runs.iterdir()
        assert len(os.listdir(run / "checkpoints")) == left


@pytest.mark.full
def test_full_disk_inside_an_epoch_ends_every_rank(mpi, config, tmp_path):
    runs = tmp_path / "runs"
    with mounted(runs, "-t", "tmpfs", "-o", "size=200k", "none"):
        keys = ["checkpoint.every_epochs=0", "checkpoint.every_seconds=0.001", "train.epochs=1", "train.batch_size=1"]
        wide = "model={name: 'tests.helpers.tiny:build', width: 2000}"
        ended = train(mpi, 3, config, wide, *keys, "dataset.samples=3000")
        assert (ended.status, ended.timed_out) == (2, False), ended
        (line,) = told(ended)
        assert "No space left on device" in line
        assert "Traceback" not in ended.err


def test_run_whose_folder_becomes_read_only_keeps_what_it_has(pool, config, tmp_path):
    ended = pool(2).train(config, "train.epochs=1", "name=run")
    assert ended.status == 0, ended
    (run,) = (tmp_path / "runs").iterdir()
    folder = run / "checkpoints"
    with mounted(folder, "--bind", str(folder)):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        ended = pool(2).train(config, "train.epochs=3", "name=run", f"checkpoint.resume={run}")
        assert ended.status == 2, ended
        (line,) = told(ended)
        assert "Read-only file system" in line
    ended = pool(2).train(config, "train.epochs=3", "name=run", f"checkpoint.resume={run}")
    assert ended.status == 0, ended
    assert "continued after epoch 1" in ended.out


def test_damaged_checkpoint_is_told_and_the_one_before_taken(mpi, config, tmp_path, pool):
    ended = pool(3, mpi).train(config, "name=run")
    assert ended.status == 0, ended
    (run,) = (tmp_path / "runs").iterdir()
    last = run / "checkpoints" / (run / "checkpoints" / "latest").read_text().strip()
    os.truncate(last, 1000)
    ended = pool(3, mpi).train(config, "name=run", f"checkpoint.resume={run}", "train.epochs=3")
    assert ended.status == 0, ended
    (line,) = told(ended)[-1:]
    assert line.startswith(
        f"psframe: warning: checkpoints are not as they were written, {str(last)!r} (its checksum differs)"
    )
    assert "continued after epoch 1" in ended.out


@pytest.mark.full
def test_names_of_points_are_checked_before_anything_starts(mpich, config):
    for value in ("renam", "rename:0", "rename:x", "write:2:3"):
        ended = train(mpich, 2, config, f"fault.crash_at={value}")
        assert ended.status == 2, ended
        (line,) = told(ended)
        assert "fault.crash_at must be none or a point" in line
        assert value in line
    assert set(checkpoint.CRASH_POINTS) <= set(line.replace(",", " ").replace(";", " ").split())


def test_arrays_that_stay_are_written_without_a_copy(tmp_path):
    held = Writer(RunDir(tmp_path, None, None), 2)
    given = saved(1)
    held.take(given, copies=False)
    assert held.taken is given
    assert held.params.size == 0
