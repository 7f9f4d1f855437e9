"""Memory comes back: by memkind's own statistics, by the process's mappings, and by valgrind."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from psframe import compiled
from psframe.memory.topology import read
from tests.helpers.launcher import ROOT

NODE = read("/").memory[0]

LEAK = """
import os, random, sys
import numpy as np
from psframe import compiled
from psframe.memory import empty

POLICIES = ("bind", "preferred", "interleave")
mapped = lambda: sum(1 for _ in open("/proc/self/maps"))
kinds = [{"name": "hbw", "policy": policy} for policy in POLICIES]
kinds += ["default", {"numa": [0]}, "interleave", {"name": "default", "huge_pages": "transparent"}]
draw = random.Random(1)
for kind in kinds:
    empty(10, placement=kind)  # what is made once is made now
has_memkind = compiled.memkind.allocated("bind") == 0
kept, before = [], mapped()
for i in range(int(sys.argv[1])):
    array = empty(draw.choice((1, 100, 5_000, 200_000, 1_000_000)), "uint8", draw.choice(kinds))
    array[:: 4096] = i % 256
    kept.append(array[draw.randrange(len(array)) :])
    if len(kept) > 20:
        kept.pop(draw.randrange(len(kept)))
in_use = sum(compiled.memkind.allocated(policy) for policy in POLICIES)
assert in_use > 0
kept.clear()
del array
cached = {policy: compiled.memkind.allocated(policy) for policy in POLICIES}
assert max(cached.values()) < 1 << 18, cached  # memkind counts small blocks that wait in its thread's cache
for i in range(300):
    empty(100_000 + i * 1000, "uint8", draw.choice(kinds))
assert cached == {policy: compiled.memkind.allocated(policy) for policy in POLICIES}
assert mapped() <= before + 40, (before, mapped())  # memkind keeps some of its own
print("no leak")
"""


LOST = """
import ctypes
from psframe.memory import empty
array = empty(100)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(array.base))
"""


def memkind_or_skip():
    try:
        compiled.memkind.load()
    except OSError as error:
        pytest.skip(f"memkind is not installed ({error}); Debian: libmemkind0")


def python(*words, before=(), **env):
    """Run Python, under the command ``before`` it."""
    command = [*before, sys.executable, *map(str, words)]
    env = {**os.environ, "MEMKIND_HBW_NODES": str(NODE), **env}
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=550)


def test_allocations_leave_nothing_behind():
    memkind_or_skip()
    ended = python("-c", LEAK, 4_000)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "no leak\n"


@pytest.mark.full
def test_owners_may_go_in_odd_orders():
    memkind_or_skip()
    ended = python("-m", "tests.stress.sanitizers.odd_orders", 1000)
    assert (ended.returncode, ended.stdout) == (0, "1000 arrays\n"), ended.stderr


def ours(log):
    """Return the frames of valgrind's stack traces that are psframe's."""
    return re.findall(r"^==\d+== +(?:at|by) 0x.*(?:_numa|_memkind).*$", log.read_text(), re.MULTILINE)


@pytest.fixture
def under_valgrind(tmp_path):
    """A function that runs Python under valgrind: what it printed, and psframe's frames in what valgrind found."""
    if not shutil.which("valgrind"):
        pytest.skip("valgrind is not installed")
    log = tmp_path / "valgrind.log"
    options = ["--leak-check=full", "--show-leak-kinds=definite,indirect", "--num-callers=40", f"--log-file={log}"]

    def run(*words):
        ended = python(*words, before=["valgrind", *options], PYTHONMALLOC="malloc")
        assert "LEAK SUMMARY" in log.read_text(), ended.stderr
        return ended.stdout, ours(log)

    return run


@pytest.mark.full
def test_valgrind_finds_no_leak_and_no_double_free(under_valgrind):
    memkind_or_skip()
    assert under_valgrind("-c", LEAK, 600) == ("no leak\n", [])


@pytest.mark.full
def test_valgrind_finds_nothing_where_owners_go_in_odd_orders(under_valgrind):
    memkind_or_skip()
    assert under_valgrind("-m", "tests.stress.sanitizers.odd_orders", 100) == ("100 arrays\n", [])


@pytest.mark.full
def test_valgrind_would_find_a_leak(under_valgrind):
    printed, found = under_valgrind("-c", LOST)
    assert printed == ""
    assert found
