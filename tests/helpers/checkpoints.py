"""Checkpoints of a small layout, the runs that hold them, and file systems to put them on."""

import os
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from psframe.memory.arena import Layout
from psframe.nn.base import Param
from psframe.record import checkpoint, metrics, sealed

LAYOUT = Layout({"0.Dense.weight": Param((3, 4), (1, 0))})


class Ten:
    """A layout of ten parameters, and none between them."""

    size = 10

    def describe(self):
        return "0.w [10] [0] at 0"


def saved(epoch=1, layout=LAYOUT, **more):
    """Return what a checkpoint of the epoch holds: numbers drawn with the epoch as seed."""
    numbers = np.random.default_rng(epoch).standard_normal(layout.size).astype(np.float32)
    return checkpoint.Saved(numbers, numbers[None] * 2, epoch, 10 * epoch, layout.describe(), **more)


def keep(path, epoch, at=sealed.anywhere, **kwargs):
    """Write a run's checkpoint and record of an epoch, and return the checkpoint's file."""
    (path / "checkpoints").mkdir(exist_ok=True)
    written = checkpoint.write(path / "checkpoints", saved(epoch, **kwargs), at)
    metrics.append(path, "metrics.jsonl", [{"epoch": epoch}])
    checkpoint.advance(written, 2, at)
    return written


def reseal(path):
    """Seal a file as psframe would: whoever can make one can."""
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, sealed._seal(fd), 0)
    os.close(fd)


def newest(path):
    """Return a run's newest checkpoint and the notices."""
    return checkpoint.newest(path / "checkpoints", LAYOUT)


def is_saved(found, epoch, **more):
    """Assert that a checkpoint is what ``keep`` wrote at the epoch."""
    wanted = saved(epoch, **more)
    for name in ("params", "state"):
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name))
        assert getattr(found, name).dtype == np.float32
    for name in ("epoch", "step", "layout", "cursor"):
        assert getattr(found, name) == getattr(wanted, name)


@contextmanager
def mounted(path, *options):
    """Mount a file system; skip where that is not allowed."""
    path.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *options, str(path)], capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"mount is not allowed here: {done.stderr.strip()}")
    try:
        yield Path(path)
    finally:
        for _ in range(1200):  # the keeper of a job ends a moment after it
            if subprocess.run(["umount", str(path)], capture_output=True).returncode == 0:
                break
            time.sleep(0.1)
        else:
            raise AssertionError(f"{path} is in use")


def resolved(base, **changes):
    """Return a resolved config with runs in ``base``; a change of ``section__name`` is of a key in a section."""
    config = {
        "name": "a-run",
        "model": {"name": "lenet"},
        "train": {"epochs": 3, "seed": 0},
        "checkpoint": {"resume": "none", "keep": 2},
        "record": {"dir": str(base)},
        "versions": {"numpy": "2"},
    }
    for key, value in changes.items():
        section, _, name = key.partition("__")
        config[section] = {**config[section], name: value} if name else value
    return config


def close(run):
    """Unlock a run's directory and return the run."""
    run.lock.close()
    return run
