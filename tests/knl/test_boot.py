"""The emulated Knights Landing is one, and what happens in it stays in it."""

import os
import sys
from pathlib import Path

import pytest

from tests.knl.boot import ROOT, missing, run

#: pages of the process's own, by mbind(2) on the node asked for, as move_pages(2) tells
PLACE = """\
import ctypes, mmap
libc = ctypes.CDLL(None)
pages = mmap.mmap(-1, 4096)
address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(pages)))
bound = libc.syscall(237, address, ctypes.c_ulong(4096), 2, ctypes.byref(ctypes.c_ulong(1 << 1)), ctypes.c_ulong(64), 0)
pages[0] = 1
node = ctypes.c_int(-1)
libc.syscall(279, 0, ctypes.c_ulong(1), ctypes.byref(address), None, ctypes.byref(node), 0)
print(bound, node.value)
"""

#: no name that anything else on this machine could have left
FRESH = f"/tmp/psframe-knl-fresh-{os.getpid()}"

SCRIPT = f"""\
cat /sys/devices/system/node/online
grep -m 1 ^model /proc/cpuinfo | tr -d '\\t '
cat /sys/devices/system/node/node1/access0/initiators/read_bandwidth
pwd
echo written >README.md && cat README.md
touch {FRESH} && ls -d {FRESH}
hostname && getent hosts knl | cut -d ' ' -f 1
{sys.executable} -c '{PLACE}'
seq 100000 >$OUT/numbers
echo an error >&2
set -e
(exit 7)
echo not reached
"""

SAID = ["0-1", "model:87", "409600", str(ROOT), "written", FRESH, "knl", "127.0.0.1", "0 1", "an error"]


@pytest.fixture(autouse=True, scope="module")
def _bootable():
    if missing():
        pytest.skip(str(missing()))


@pytest.mark.full
def test_boot_runs_a_script_and_leaves_this_machines_files_alone(tmp_path):
    readme = (ROOT / "README.md").read_bytes()
    ended = run("quadrant", SCRIPT, out=tmp_path)
    assert ended.out.splitlines() == SAID, ended
    assert (ended.status, ended.timed_out) == (7, False)
    assert (ROOT / "README.md").read_bytes() == readme
    assert not Path(FRESH).exists()
    assert (tmp_path / "numbers").read_text().splitlines()[-1] == "100000"


@pytest.mark.full
def test_kernel_that_panics_ends_and_says_why():
    ended = run("cache", "echo before; echo c >/proc/sysrq-trigger")
    assert (ended.status, ended.out, ended.timed_out) == (None, "before\n", False)
    assert "Kernel panic" in ended.console


def test_boot_is_stopped_at_the_time_out():
    ended = run("SNC-4", "true", timeout_s=0.5)  # it cannot have started so soon
    assert (ended.status, ended.timed_out) == (None, True)


def test_mode_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="SNC-4, quadrant, cache"):
        run("hybrid", "true")
