"""Cgroup of a test's own, of version 1 or 2 (:func:`cgroup`), where the machine allows one."""

import os
import time
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")
#: by what is limited, and version: the controller, its files, and what is written to them
LIMITS = {
    "cpu": {
        1: ("cpu", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "{}"}),
        2: ("cpu", {"cpu.max": "{} 100000"}),
    },
    "memory": {
        1: ("memory", {"memory.limit_in_bytes": "{}"}),
        2: ("memory", {"memory.swap.max": "0", "memory.max": "{}"}),
    },
    "disk": {
        1: ("blkio", {"blkio.throttle.write_bps_device": "{device} {}"}),
        2: ("io", {"io.max": "{device} wbps={}"}),
    },
}
MADE = count()


@contextmanager
def cgroup(of, limit, disk="/"):
    """Make a cgroup with a limit; yield its folder. Skip the test where that is not allowed.

    It is of microseconds of a core in 100 ms (``cpu``), of bytes (``memory``), or of bytes a second that are written to
    what ``disk`` lies on (``disk``). What is in it goes back to the group above at the end.
    """
    version = 1 if (ROOT / LIMITS[of][1][0] / "cgroup.procs").exists() else 2
    controller, files = LIMITS[of][version]
    device = os.stat(disk).st_dev
    above = ROOT / controller if version == 1 else ROOT
    folder = above / f"psframe-tests-{os.getpid()}-{next(MADE)}"
    try:
        if version == 2 and controller not in (above / "cgroup.subtree_control").read_text().split():
            raise OSError(f"{controller} is not in cgroup.subtree_control")
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no cgroup of {controller} can be made here: {error}")
    try:
        for name, text in files.items():
            with suppress(FileNotFoundError):  # a kernel without swap
                (folder / name).write_text(text.format(limit, device=f"{os.major(device)}:{os.minor(device)}"))
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
