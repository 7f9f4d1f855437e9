"""Checkpoints: durable, read as they were written, and never taken for whole where they are not."""

import errno
import os
import shutil
import subprocess

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframe.memory.arena import Layout
from psframe.nn.base import Param
from psframe.record import checkpoint
from tests.helpers.checkpoints import LAYOUT, is_saved, keep, mounted, newest, saved


@given(st.integers(0, 2**62))
@settings(max_examples=50)
def test_checkpoint_is_read_as_it_was_written(tmp_path_factory, cursor):
    folder = tmp_path_factory.mktemp("whole")
    keep(folder, 2, cursor=cursor)
    found, notices = newest(folder)
    is_saved(found, 2, cursor=cursor)
    assert notices == []


def test_rows_of_state_are_kept_also_none(tmp_path):
    for epoch, rows in enumerate(([], [np.ones(16, np.float32), np.zeros(16, np.float32)]), 1):
        params = np.full(16, epoch, np.float32)
        path = checkpoint.write(tmp_path, checkpoint.Saved(params, rows, epoch, 1, LAYOUT.describe()))
        checkpoint.advance(path, 2)
        found, _ = checkpoint.newest(tmp_path, LAYOUT)
        np.testing.assert_array_equal(found.state, np.reshape(rows, (-1, 16)))


@pytest.mark.parametrize("content", ["", "epoch-1.h5", "../latest"])
def test_pointer_to_the_best_that_is_damaged_stops_no_checkpoint(tmp_path, content):
    keep(tmp_path, 1)
    (tmp_path / "checkpoints" / "best").write_text(content)
    keep(tmp_path, 2)
    keep(tmp_path, 3)
    assert newest(tmp_path)[0].epoch == 3


def test_checkpoints_kept_are_the_newest_of_what_goes_on(tmp_path):
    for epoch in (1, 2, 3, 4):
        keep(tmp_path, epoch)
    names = {e: f"epoch-{e:05d}-step-{10 * e:010d}.h5" for e in (1, 2, 3, 4)}
    assert sorted(os.listdir(tmp_path / "checkpoints")) == [names[3], names[4], "latest"]
    keep(tmp_path, 2)  # it went on from before 3
    assert sorted(os.listdir(tmp_path / "checkpoints")) == [names[2], "latest"]
    assert newest(tmp_path)[0].epoch == 2


def test_names_sort_by_step():
    many = [(0, 3), (0, 12), (1, 20), (1, 200), (2, 220), (100000, 10**11)]
    names = [f"epoch-{epoch:05d}-step-{step:010d}.h5" for epoch, step in many]
    assert [checkpoint._place(name) for name in names] == many
    assert sorted(names[:-1]) == names[:-1]


def test_file_that_latest_does_not_name_is_no_checkpoint_yet(tmp_path):
    keep(tmp_path, 1)
    checkpoint.write(tmp_path / "checkpoints", saved(2))
    assert newest(tmp_path)[0].epoch == 1
    (tmp_path / "checkpoints" / "latest").unlink()
    found, (notice,) = newest(tmp_path)
    assert found.epoch == 2
    assert "latest' (No such file or directory)" in notice


def test_crash_points_come_in_order_and_leave_what_is_whole(tmp_path):
    come_to, there = [], []
    keep(tmp_path, 1)

    def at(point):
        come_to.append(point)
        copy = tmp_path / point / "checkpoints"
        shutil.copytree(tmp_path / "checkpoints", copy)
        found, notices = checkpoint.newest(copy, LAYOUT)
        is_saved(found, found.epoch)
        assert notices == []
        there.append(found.epoch)

    keep(tmp_path, 2, at)
    assert tuple(come_to) == checkpoint.CRASH_POINTS
    assert there == [1] * 9 + [2] * 3


def test_checkpoint_is_on_the_disk_before_it_is_read_back_and_named(tmp_path, monkeypatch):
    events, fsync = [], os.fsync

    def synced(fd):
        events.append(os.path.basename(os.readlink(f"/proc/self/fd/{fd}")))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", synced)
    keep(tmp_path, 1, events.append)
    for begin, end, name in (
        ("sync", "verify", ".h5.part"),
        ("sync-folder", "latest-write", "checkpoints"),
        ("latest-sync", "latest-rename", "latest.part"),
        ("latest-sync-folder", "prune", "checkpoints"),
    ):
        between = events[events.index(begin) + 1 : events.index(end)]
        assert any(event.endswith(name) for event in between), f"nothing is brought to the disk behind {begin}"


@pytest.mark.parametrize("kilobytes", [4, 8, 16, 24, 32, 64, 200])
def test_full_disk_is_an_error_and_leaves_nothing_half_written(tmp_path, kilobytes):
    big = Layout({"weight": Param((100_000,), (0,))})
    with mounted(tmp_path / "small", "-t", "tmpfs", "-o", f"size={kilobytes}k", "none") as folder:
        with pytest.raises(OSError, match="No space left on device") as raised:
            checkpoint.write(folder, saved(1, big))
        assert raised.value.errno == errno.ENOSPC
        assert os.listdir(folder) == []
        small = checkpoint.write(folder, saved(1)) if kilobytes >= 16 else None
        if small:
            checkpoint.advance(small, 1)
            is_saved(checkpoint.newest(folder, LAYOUT)[0], 1)


def test_read_only_folder_is_an_error_and_keeps_what_is_there(tmp_path):
    keep(tmp_path, 1)
    folder = tmp_path / "checkpoints"
    with mounted(folder, "--bind", str(folder)):
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        with pytest.raises(OSError, match="Read-only file system"):
            checkpoint.write(folder, saved(2))
        is_saved(newest(tmp_path)[0], 1)


def test_file_that_reads_back_otherwise_is_no_checkpoint(tmp_path):
    def at(point):
        if point == "verify":
            (part,) = tmp_path.glob("*.part")
            with open(part, "r+b") as file:
                file.seek(-5, os.SEEK_END)
                file.write(b"x")

    with pytest.raises(OSError, match="reads back otherwise"):
        checkpoint.write(tmp_path, saved(1), at)
    assert list(tmp_path.iterdir()) == []


def test_hdf5_alone_reads_a_checkpoint(tmp_path):
    path = keep(tmp_path, 3, cursor=5)
    with h5py.File(path) as file:
        np.testing.assert_array_equal(file["params"], saved(3).params)
        assert dict(file.attrs) == {"epoch": 3, "step": 30, "cursor": 5, "data": 0}
