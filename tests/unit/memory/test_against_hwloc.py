"""Machines are read as hwloc reads them: emulated ones, this one, and those that were captured with hwloc's tools."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframe.memory.sysfs import spell
from psframe.memory.topology import read
from tests.helpers import hwloc
from tests.helpers.machine_trees import Memory, knl, machine, put_cpus, xeon_max

pytestmark = pytest.mark.skipif(hwloc.LSTOPO is None, reason="lstopo is not installed: apt-get install hwloc-nox")

CAPTURED = os.environ.get("PSFRAME_MACHINE_TREES", "")

#: what is read otherwise of the machines that hwloc is tested with, and why: docs/tutorials/memory.md
OTHERWISE = {
    "40intel64-4n10c+pci-conflicts": ["4 packages, not 3"],
    "64amd64-4s2n4ca2co": ["32 cores, not 64"],
    "8em64t-2s2ca2c-buggynuma": ["nodes 0-7, not 0"],
    "fakeheterocpunuma": ["nodes 0-5, not 0-3"],
}


def same(root):
    assert list(hwloc.differences(read(root), hwloc.read(root))) == []


@pytest.mark.parametrize(
    "build",
    [
        knl,
        lambda root: knl(root, clusters=4, hmat=True),
        lambda root: knl(root, hbw=0),
        xeon_max,
        lambda root: xeon_max(root, homes=8, hmat=True),
        lambda root: xeon_max(root, hbw=0),
    ],
    ids=["knl", "knl-snc-4", "knl-cache", "xeon-max", "xeon-max-snc-4", "xeon-max-cache"],
)
def test_emulated_machine_is_read_as_hwloc_reads_it(tmp_path, build):
    same(build(tmp_path))


@settings(max_examples=25)
@given(data=st.data())
def test_any_machine_is_read_as_hwloc_reads_it(tmp_path_factory, data):
    """Of as many cores and packages as it may be, some of them offline, on nodes with memory of any size."""
    packages, threads = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    n_cores = packages * data.draw(st.integers(1, 4))
    n = n_cores * threads
    offline = data.draw(st.sets(st.integers(1, n - 1), max_size=n - 1)) if n > 1 else set()
    of_package = [[c for c in range(n) if c % n_cores * packages // n_cores == p] for p in range(packages)]
    nodes = {p: Memory(spell(cpus), data.draw(st.integers(1, 64))) for p, cpus in enumerate(of_package)}
    root = tmp_path_factory.mktemp("machine")
    machine(root, nodes)
    put_cpus(root, spell(set(range(n)) - offline), threads, packages, spell(offline))
    same(root)


def test_this_machine_is_read_as_hwloc_reads_it():
    """But for bytes: memory that was added to a virtual machine is in none of its nodes."""
    found = hwloc.differences(read("/"), hwloc.read(Path("/")))
    assert [words for words in found if "bytes" not in words] == []


@pytest.mark.skipif(not CAPTURED, reason="PSFRAME_MACHINE_TREES names no folder of captured machines")
def test_captured_machines_are_read_as_hwloc_reads_them():
    """Those of hwloc's own tests (``tests/hwloc/linux/*.tar.bz2`` in its sources), each unpacked to a folder."""
    roots = {tree.name: next(tree.glob("**/sys")).parent for tree in Path(CAPTURED).iterdir() if tree.is_dir()}
    found = {name: list(hwloc.differences(read(root), hwloc.read(root))) for name, root in roots.items()}
    assert {name: differences for name, differences in found.items() if differences} == OTHERWISE
