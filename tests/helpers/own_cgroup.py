"""Cgroup of a test's own, of version 1 or 2 (:func:`cgroup`), where the machine allows one."""

import os
import time
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")
#: files by controller and version, and what is written to them
CPU = {1: {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "{}"}, 2: {"cpu.max": "{} 100000"}}
MEMORY = {1: {"memory.limit_in_bytes": "{}"}, 2: {"memory.swap.max": "0", "memory.max": "{}"}}
MADE = count()


@contextmanager
def cgroup(controller, limit):
    """Make a cgroup with a limit: microseconds of a core in 100 ms (``cpu``), or bytes (``memory``); yield its folder.

    Skip the test where that is not allowed. What is in it goes back to the group above at the end.
    """
    version = 1 if (ROOT / controller / "cgroup.procs").exists() else 2
    above = ROOT / controller if version == 1 else ROOT
    folder = above / f"psframe-tests-{os.getpid()}-{next(MADE)}"
    try:
        if version == 2 and controller not in (above / "cgroup.subtree_control").read_text().split():
            raise OSError(f"{controller} is not in cgroup.subtree_control")
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup of {controller} can be made here: {error}")
    try:
        for name, text in {"cpu": CPU, "memory": MEMORY}[controller][version].items():
            with suppress(FileNotFoundError):  # a kernel without swap
                (folder / name).write_text(text.format(limit))
        yield folder
    finally:
        _remove(folder)


def _remove(folder):
    until = time.monotonic() + 30
    while True:
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (folder.parent / "cgroup.procs").write_text(pid)
        try:
            return folder.rmdir()
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def enter(folder, pids):
    """Move processes into a cgroup."""
    for pid in pids:
        (folder / "cgroup.procs").write_text(str(pid))


def within(folder, command):
    """Return a command that begins in a cgroup, and with it all that it starts."""
    return ["sh", "-c", f'echo $$ > {folder}/cgroup.procs; exec "$@"', "sh", *command]
