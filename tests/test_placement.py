"""Every placement, for private and for shared memory, with every size of pages: the pages lie where its policy says."""

import mmap
import os
import pickle
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe import compiled
from psframe.errors import UserError
from psframe.memory import empty, pages
from psframe.memory.placement import TABLE, MissingMemoryError, spelled_out
from psframe.memory.site import Site
from psframe.memory.topology import read
from psframe.registry import bind
from tests.launcher import ROOT

CPUS = tuple(sorted(os.sched_getaffinity(0)))
#: this machine, its first NUMA node declared to be high-bandwidth memory as a user may
FAST = read("/", [read("/").memory[0]])
NODE = FAST.memory[0]

SPECS = [
    {"name": "default"},
    {"name": "ddr"},
    {"name": "hbw"},
    {"name": "hbw", "policy": "preferred"},
    {"name": "hbw", "policy": "interleave"},
    {"name": "numa", "nodes": [NODE]},
    {"name": "interleave"},
    {"name": "interleave", "nodes": [NODE]},
    {"name": "tests.own:Upwards"},
]
assert {spec["name"] for spec in SPECS} >= set(TABLE)


def site(spec):
    return Site(read("/", []) if spec["name"] == "ddr" else FAST, CPUS)


def make(spec, huge_pages="none"):
    return bind("placement", TABLE, {**spec, "huge_pages": huge_pages})()


def reserved(huge_pages):
    size = pages.RESERVED_BYTES[huge_pages]
    return FAST.node(NODE).huge_pages.get(size, (0, 0))[1] if size else 8


def counted(memory, spec, placement, where):
    counts = compiled.numa.where(memory)
    assert -1 not in counts
    policy = placement.policy(where, False)
    assert set(counts) <= set(policy.nodes or where.topology.memory), spec
    return sum(counts.values())


@pytest.mark.parametrize("huge_pages", ["none", "transparent", "2M", "1G"])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_private_memory_lies_where_it_was_asked_for(spec, huge_pages):
    placement, where = make(spec, huge_pages), site(spec)
    if not reserved(huge_pages):
        with pytest.raises(OSError):  # noqa: PT011
            placement.allocate(1 << 20, where)
        return
    for n_bytes in (1, 4096, 4097, 5 << 20):
        memory = np.frombuffer(placement.allocate(n_bytes, where), np.uint8)
        assert len(memory) == n_bytes
        assert memory.ctypes.data % compiled.numa.PAGE_BYTES == 0
        memory[:] = 7
        assert counted(memory, spec, placement, where) == -(-n_bytes // compiled.numa.PAGE_BYTES)
        assert (memory == 7).all()


@pytest.mark.parametrize("huge_pages", ["none", "transparent"])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_shared_memory_lies_where_it_was_asked_for(spec, huge_pages):
    placement, where = make(spec, huge_pages), site(spec)
    fd = os.memfd_create("test")
    os.ftruncate(fd, 3 << 20)
    memory = np.frombuffer(mmap.mmap(fd, 3 << 20), np.uint8)
    os.close(fd)
    placement.bind(memory, where)
    memory[:] = 3
    assert counted(memory, spec, placement, where) == (3 << 20) // compiled.numa.PAGE_BYTES


def test_nothing_was_noted_where_all_went_as_asked():
    for spec in SPECS:
        where = site(spec)
        make(spec).allocate(10, where)
        if spec["name"] != "hbw":
            assert where.notes == []


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"name": "numa", "nodes": [4095]}, "nodes must be NUMA nodes with memory"),
        ({"name": "numa", "nodes": []}, "nodes must be NUMA nodes"),
        ({"name": "interleave", "nodes": [0, 999]}, r"got \[0, 999\]"),
        ({"name": "hbw"}, "high-bandwidth memory as NUMA nodes, got none"),
    ],
)
def test_what_does_not_exist_is_said(spec, words):
    with pytest.raises(MissingMemoryError, match=words):
        make(spec).policy(Site(read("/", []), CPUS), False)


def test_ddr_is_missing_where_all_is_high_bandwidth_memory():
    everything = read("/", list(read("/").memory))
    with pytest.raises(MissingMemoryError, match="all high-bandwidth"):
        make({"name": "ddr"}).policy(Site(everything, CPUS), False)


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("hbw", {"name": "hbw"}),
        ({"numa": [1, 2]}, {"name": "numa", "nodes": [1, 2]}),
        ({"interleave": [0], "huge_pages": "2M"}, {"name": "interleave", "nodes": [0], "huge_pages": "2M"}),
        ({"policy": "bind"}, {"policy": "bind"}),
        (7, 7),
    ],
)
def test_short_forms(short, long):
    assert spelled_out(short) == long


# psframe.memory.empty: arrays as NumPy's own


@pytest.mark.parametrize("spec", ["default", "ddr", {"numa": [NODE]}, "interleave"])
@given(
    shape=st.one_of(st.integers(0, 50), st.lists(st.integers(0, 9), max_size=4).map(tuple)),
    dtype=st.sampled_from(["float32", "float64", "int8", "uint16", "complex64", "bool", "M8[s]", "S3", "i4,f8"]),
)
def test_an_empty_array_is_like_numpys(spec, shape, dtype):
    array, plain = empty(shape, dtype, spec), np.empty(shape, dtype)
    assert array.shape == plain.shape
    assert array.dtype == plain.dtype
    assert array.strides == plain.strides or not plain.size
    flags = {name: getattr(array.flags, name) for name in ("c_contiguous", "writeable", "aligned")}
    assert flags == {name: getattr(plain.flags, name) for name in flags}
    assert not array.flags.owndata
    array[...] = plain
    assert array.tobytes() == plain.tobytes()


def test_views_slices_ufuncs_pickles_and_resize():
    array = empty((6, 4), "float32", "default")
    array[...] = np.arange(24).reshape(6, 4)
    assert np.shares_memory(array[1:, ::2], array)
    assert array.T.base is not None
    assert np.add(array, 1, out=array) is array
    assert array.sum() == 24 + 23 * 12
    copy = pickle.loads(pickle.dumps(array))
    assert (copy == array).all()
    assert not np.shares_memory(copy, array)
    with pytest.raises(ValueError, match="does not own"):
        array.resize(100)
    view = array[3]
    del array
    assert view.tolist() == [13, 14, 15, 16]  # the memory lives as long as a view


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((3, "float32", "hbm"), "did you mean 'hbw'"),
        ((3, "float32", {"name": "numa"}), "nodes is required"),
        ((3, "float32", {"name": "ddr", "huge_pages": "4M"}), "huge_pages must be one of none"),
        ((3, object, "default"), "plain numbers"),
        ((-3, "float32", "default"), ">= 0"),
        ((1 << 60, "float32", "default"), "memory must be there"),
    ],
)
def test_what_cannot_be_had_is_said(arguments, words):
    with pytest.raises(UserError, match=words):
        empty(*arguments)


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
for i in range(10_000):
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


def leak(*before, **env):
    command = [*before, sys.executable, "-c", LEAK]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "MEMKIND_HBW_NODES": str(NODE), **env},
                          capture_output=True, text=True, timeout=550)  # fmt: skip


def memkind_or_skip():
    try:
        compiled.memkind.load()
    except OSError as error:
        pytest.skip(f"memkind is not installed ({error}); Debian: libmemkind0")


def test_ten_thousand_allocations_leave_nothing_behind():
    memkind_or_skip()
    ended = leak()
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == "no leak\n"


def ours(log):
    """Return the frames of valgrind's stack traces that are psframe's."""
    return re.findall(r"^==\d+== +(?:at|by) 0x.*(?:_numa|_memkind).*$", log.read_text(), re.MULTILINE)


def test_valgrind_finds_no_leak_and_no_double_free(tmp_path):
    memkind_or_skip()
    if not shutil.which("valgrind"):
        pytest.skip("valgrind is not installed")
    log = tmp_path / "valgrind.log"
    command = ["valgrind", "--leak-check=full", "--show-leak-kinds=definite,indirect", f"--log-file={log}"]
    ended = leak(*command, "--num-callers=40", PYTHONMALLOC="malloc")
    assert ended.stdout == "no leak\n", ended.stderr
    assert "LEAK SUMMARY" in log.read_text()
    assert not ours(log)


LOST = """
import ctypes
from psframe.memory import empty
array = empty(100)
ctypes.pythonapi.Py_IncRef(ctypes.py_object(array.base))
"""


def test_valgrind_would_find_one(tmp_path):
    if not shutil.which("valgrind"):
        pytest.skip("valgrind is not installed")
    log = tmp_path / "valgrind.log"
    options = ["--leak-check=full", "--show-leak-kinds=definite,indirect", "--num-callers=40", f"--log-file={log}"]
    command = ["valgrind", *options, sys.executable, "-c", LOST]
    env = {**os.environ, "PYTHONMALLOC": "malloc"}
    subprocess.run(command, cwd=ROOT, env=env, capture_output=True, timeout=300, check=True)
    assert ours(log)
