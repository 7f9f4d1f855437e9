"""Every placement, for private and for shared memory, with every size of pages: the pages lie where its policy says."""

import mmap
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe import compiled
from psframe.config.placement_spec import spelled_out
from psframe.config.registry import bind
from psframe.errors import UserError
from psframe.memory import empty, hbw, pages
from psframe.memory.placement import TABLE, MissingMemoryError
from psframe.memory.process_site import Site
from psframe.memory.topology import read
from tests.helpers.launcher import ROOT

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
    {"name": "weighted", "weights": {NODE: 2}},
    {"name": "tests.helpers.own:Upwards"},
]
assert {spec["name"] for spec in SPECS} >= set(TABLE) - {"by_tensor", "auto"}  # of which test_by_tensor tells


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
        assert len(memory) >= n_bytes
        memory = memory[:n_bytes]
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


@pytest.mark.parametrize("serves", [True, False])
@pytest.mark.parametrize("setting", [None, "", "0"])
def test_memkind_is_told_its_nodes_once_and_settings_stay_the_users(monkeypatch, setting, serves):
    heard, users = [], {"MEMKIND_HBW_NODES": setting, "MEMKIND_ARENA_NUM_PER_KIND": "3"}
    for name, value in users.items():
        monkeypatch.setenv(name, value or "")
        if value is None:
            monkeypatch.delenv(name)
    monkeypatch.setattr(hbw, "_told", [])
    monkeypatch.setattr(compiled.memkind, "load", lambda: None)
    monkeypatch.setattr(compiled.memkind, "available", lambda: heard.append(dict(os.environ)) or serves)
    for nodes, served in [((4, 5), serves), ((4, 5), serves), ((6,), False)]:
        why = hbw.open_memkind(nodes)
        assert why == ("" if served else f"memkind serves node(s) {'4,5' if serves else 'none'} in this process")
        assert {name: os.environ.get(name) for name in users} == users
    assert [{name: environ[name] for name in users} for environ in heard] == [{**users, "MEMKIND_HBW_NODES": "4,5"}]


def test_notes_are_none_where_all_went_as_asked():
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
def test_memory_that_does_not_exist_is_said(spec, words):
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


@pytest.mark.skipif(reserved("2M") > 0, reason="huge pages have been reserved")
@pytest.mark.parametrize("spec", ["default", {"numa": [NODE]}])
def test_reserved_pages_too_few_are_named(spec):
    with pytest.raises(UserError, match="huge_pages: 2M must find free pages of 2,048 kB, 3 of them"):
        empty(5 << 20, "uint8", {**spelled_out(spec), "huge_pages": "2M"})


# psframe.memory.empty: arrays as NumPy's own


@pytest.mark.parametrize("spec", ["auto", {"default": "ddr", "a": "ddr"}], ids=str)
def test_empty_array_has_no_tensors_to_place(spec):
    with pytest.raises(UserError, match="an array must have one place"):
        empty(3, "float32", spec)


@pytest.mark.parametrize("spec", ["default", "ddr", {"numa": [NODE]}, "interleave"])
@given(
    shape=st.one_of(st.integers(0, 50), st.lists(st.integers(0, 9), max_size=4).map(tuple)),
    dtype=st.sampled_from(["float32", "float64", "int8", "uint16", "complex64", "bool", "M8[s]", "S3", "i4,f8"]),
)
def test_empty_array_is_like_that_of_numpy(spec, shape, dtype):
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
        ((2**64 - 2**21 + 4096, "uint8", {"name": "default", "huge_pages": "transparent"}), "memory must be there"),
        ((3, "nonsense", "default"), "must have a dtype"),
        (("ab", "float32", "default"), "whole numbers for a shape"),
        ((3.5, "float32", "default"), "whole numbers for a shape"),
        ((3, "float32", 7), "must be a name, a mapping or a Placement"),
        ((3, "float32", {"name": "ddr", "policy": "bind"}), "ddr takes no policy"),
    ],
)
def test_memory_that_cannot_be_had_is_said(arguments, words):
    with pytest.raises(UserError, match=words):
        empty(*arguments)


WARNS = """
import warnings
from psframe.memory import empty
with warnings.catch_warnings(record=True) as caught:
    assert empty(100, "uint8", {"numa": [NODE]}).shape == (100,)
assert ["mbind is denied" in str(one.message) for one in caught] == [True], caught
assert caught[0].filename == "<string>", caught[0]
"""


def test_memory_elsewhere_than_asked_for_is_a_warning():
    code = WARNS.replace("NODE", str(NODE))
    command = [sys.executable, "-m", "tests.helpers.denied", "mbind", sys.executable, "-c", code]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
