"""What is read of CPUs, nodes and memory, and what is taken where files are missing or malformed."""

import json
import shutil
from dataclasses import asdict

import pytest

from psframe.memory.sysfs import parse_list, parse_mask, spell
from psframe.memory.topology import Topology, read
from tests.helpers import machine_trees as trees
from tests.helpers.machine_trees import GIB, NODES, Memory, hmat, knl, machine, put


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("0-3,8-11\n", (0, 1, 2, 3, 8, 9, 10, 11)),
        ("5", (5,)),
        ("\n", ()),
        ("0-31:2/4", (0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29)),
        ("0-6:1/3,9", (0, 3, 6, 9)),
        ("3-1", None),
        ("0-1-2", None),
        ("0-999999999", None),
        ("0-7:0/2", None),
        ("0-7:3/2", None),
        ("0x1", None),
        ("-1", None),
        ("٣", None),
    ],
)
def test_lists(text, numbers):
    assert parse_list(text) == numbers


@pytest.mark.parametrize(
    ("text", "bits"),
    [("00000000,0000000f\n", (0, 1, 2, 3)), ("1,00000001", (0, 32)), ("0x3", (0, 1)), ("", None), ("g", None)],
)
def test_masks(text, bits):
    assert parse_mask(text) == bits


def test_node_that_is_alone_has_what_the_machine_has(tmp_path):
    """A virtual machine's node 0 may leave out memory that was added while it ran."""
    machine(tmp_path, {0: Memory("0-1", 7 * GIB)}, [[10]], online="0-1")
    put(tmp_path, "proc/meminfo", f"MemTotal: {24 << 20} kB\nMemFree: {20 << 20} kB\n")
    (node,) = read(tmp_path).nodes
    assert node.total_bytes == 24 * GIB
    assert 19 * GIB < node.free_bytes < 20 * GIB


def test_memory_that_was_added_is_more_than_some_pages(tmp_path):
    """What the machine has beyond its only node's is the kernel's rounding, or that of a node which is not shown."""
    machine(tmp_path, {1: Memory("0-1", 8)}, [[10]], online="0-1")
    put(tmp_path, "proc/meminfo", f"MemTotal: {(8 << 20) + 16} kB\n")
    assert read(tmp_path).node(1).total_bytes == 8 * GIB
    put(tmp_path, "proc/meminfo", f"MemTotal: {16 << 20} kB\n")
    put(tmp_path, f"{NODES}/has_memory", "0-1")
    found = read(tmp_path)
    assert (found.node(1).total_bytes, found.offline_nodes) == (8 * GIB, (0,))


@pytest.mark.parametrize("name", ["core_siblings_list", "core_siblings", "package_cpus_list", "package_cpus"])
def test_packages_without_numbers_of_their_own(tmp_path, name):
    """Some kernels number all -1, or two alike."""
    machine(tmp_path, {0: Memory("0-5")}, packages=3)
    for place in tmp_path.glob(f"{trees.CPUS}/cpu*/topology"):
        (place / "physical_package_id").write_text("-1\n")
        cpus = (place / "core_siblings_list").read_text()
        for other in place.glob("core_siblings*"):
            other.unlink()
        (place / name).write_text(cpus if name.endswith("list") else trees.mask_of(parse_list(cpus)))
    assert read(tmp_path).packages == 3
    shutil.rmtree(tmp_path / trees.CPUS / "cpu0/topology")
    assert read(tmp_path).packages is None


def test_spell():
    assert spell([8, 0, 1, 2]) == "0-2,8"
    assert parse_list(spell(range(0, 99, 7))) == tuple(range(0, 99, 7))


def test_offline_cpu_0_and_node_0(tmp_path):
    machine(tmp_path, {1: Memory("1,3,5,7")}, [[10]], online="2-7", offline="0-1")
    put(tmp_path, f"{NODES}/node0/cpulist", "")
    found = read(tmp_path)
    assert found.cpus == (2, 3, 4, 5, 6, 7)
    assert (found.offline_cpus, found.offline_nodes) == ((0, 1), (0,))
    assert [node.number for node in found.nodes] == [1]
    assert found.node(1).cpus == (3, 5, 7)
    assert (found.node_of(2), found.home([2, 4]), found.home([])) == (None, 1, 1)


def test_home_and_nearest(tmp_path):
    nodes = {0: Memory("0-1", 0), 1: Memory("2-4"), 2: hmat(100, 1), 3: hmat(100, 0), 4: hmat(200, 1)}
    rows = [[10, 20, 30, 30, 40], [20, 10, 30, 30, 30], *([30] * 5 for _ in range(3))]
    found = read(machine(tmp_path, nodes, rows))
    assert found.home([0, 1, 2]) == 0
    assert found.home([0, 2]) == 0
    assert found.home([0, 3, 4]) == 1
    assert found.home([]) == 1
    assert found.home([99]) == 1
    assert found.nearest(0, [4, 3, 2]) == 3  # equally near and fast: its own initiator's
    assert found.nearest(1, [2, 3, 4]) == 4  # equally near: the fastest
    assert found.nearest(1, [3, 2]) == 2
    assert found.nearest(1, found.memory) == 1


def test_cpuset(tmp_path):
    nodes = {i: Memory(str(i)) for i in range(4)}
    assert read(machine(tmp_path, nodes, allowed="1-2")).memory == (1, 2)
    (tmp_path / "proc/self/status").unlink()
    assert read(tmp_path).memory == (0, 1, 2, 3)
    put(tmp_path, "proc/self/cgroup", "7:cpuset:/jobs/a\n0::/jobs/a/b")
    put(tmp_path, "sys/fs/cgroup/cpuset/cpuset.mems", "0-3")
    put(tmp_path, "sys/fs/cgroup/cpuset/jobs/a/cpuset.mems", "0,3")
    assert read(tmp_path).memory == (0, 3)
    shutil.rmtree(tmp_path / "sys/fs/cgroup/cpuset")
    put(tmp_path, "sys/fs/cgroup/jobs/cpuset.mems.effective", "2")  # a parent's, where the child has no controller
    assert read(tmp_path).memory == (2,)
    put(tmp_path, "proc/self/cgroup", "0::/../../jobs")
    put(tmp_path, "proc/self/status", "Mems_allowed_list:\t9")
    found = read(tmp_path)
    assert found.memory == (0, 1, 2, 3)
    assert "all are used" in found.notes[0]


def test_memory_and_huge_pages(tmp_path):
    machine(tmp_path, {0: Memory("0-3", 100, free_gib=50)})
    place = f"{NODES}/node0/meminfo"
    text = (tmp_path / place).read_text().replace("Active(file):               0", "Active(file):        20971520")
    put(tmp_path, place, text)
    node = read(tmp_path).node(0)
    assert node.total_bytes == 100 * GIB
    assert node.free_bytes == (50 + 20 // 2 - 2) * GIB
    assert node.huge_pages == {2 << 20: (8, 3)}
    shutil.rmtree(tmp_path / f"{NODES}/node0/hugepages")
    put(tmp_path, "sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages", 2)
    assert read(tmp_path).node(0).huge_pages == {1 << 30: (2, 0)}


def test_machine_without_numa(tmp_path):
    shutil.rmtree(machine(tmp_path, {0: Memory("0-3", 7)}) / NODES)
    found = read(tmp_path)
    assert (found.cpus, found.node(0).cpus, found.node(0).tier) == ((0, 1, 2, 3), (0, 1, 2, 3), "ddr")
    assert found.node(0).total_bytes == 7 * GIB
    assert len(found.notes) == 1


def test_sysfs_that_is_sparse_and_old(tmp_path):
    """Masks in place of lists, no list of what is online."""
    machine(tmp_path, {0: Memory("0-1"), 33: Memory("2-3"), 72: Memory("32-33")}, online="0-3,32-33")
    for number, mask in ((0, "00000000,00000003"), (33, "00000000,0000000c"), (72, "00000003,00000000")):
        (tmp_path / f"{NODES}/node{number}/cpulist").unlink()
        put(tmp_path, f"{NODES}/node{number}/cpumap", mask)
    for place in (f"{NODES}/online", f"{trees.CPUS}/online"):
        (tmp_path / place).unlink()
    found = read(tmp_path)
    assert {node.number: node.cpus for node in found.nodes} == {0: (0, 1), 33: (2, 3), 72: (32, 33)}
    assert found.node(33).distances == {0: 20, 33: 10, 72: 20}


@pytest.mark.parametrize("gone", [["online"], ["online", "cpu"], ["all"]])
def test_cpus_are_looked_for_in_every_place(tmp_path, gone):
    machine(tmp_path, {0: Memory("0-1"), 1: Memory("2-3")}, cpuinfo="".join(f"processor\t: {i}\n\n" for i in range(4)))
    (tmp_path / trees.CPUS / "online").unlink()
    if gone != ["online"]:
        shutil.rmtree(tmp_path / trees.CPUS)
    if gone == ["all"]:
        shutil.rmtree(tmp_path / NODES)
    found = read(tmp_path)
    assert found.cpus == (0, 1, 2, 3)
    assert found.notes


def test_distances_malformed(tmp_path):
    machine(tmp_path, {0: Memory("0-1"), 1: Memory("2-3")}, [[10, 20, 30], [20, 0]])
    found = read(tmp_path)
    assert [node.distances for node in found.nodes] == [{}, {}]
    assert (found.nearest(1, [0, 1]), len(found.notes)) == (1, 2)


def test_files_that_fail_alike_share_a_note(tmp_path):
    knl(tmp_path)
    for place in tmp_path.glob("sys/devices/system/cpu/cpu*/topology/thread_siblings*"):
        place.unlink() if place.name == "thread_siblings" else place.write_bytes(b"\xff\x00\xfe")
    found = read(tmp_path)
    assert len(found.cores) == 64
    assert len(found.notes) == 2
    assert "(and 63 files like it) is no list of numbers" in found.notes[0]


def test_machine_that_is_absent(tmp_path):
    found = read(tmp_path / "absent")
    assert isinstance(found, Topology)
    assert (found.cpus, found.memory, found.home([])) == ((), (), 0)


def test_topology_of_this_machine():
    found = read(environ={})
    assert found.cpus
    assert found.memory
    assert all(found.node(number).total_bytes > 0 for number in found.memory)


def test_plain_topology(tmp_path):
    """A topology is plain values: it can be written as JSON and compared."""
    found = read(knl(tmp_path, 4))
    assert json.loads(json.dumps(asdict(found)))["cluster_mode"] == "SNC-4"
    assert found == read(str(tmp_path))


def test_cpus_that_two_nodes_list(tmp_path):
    """Seen where firmware was wrong: every node lists every CPU."""
    found = read(machine(tmp_path, {0: Memory("0-3"), 1: Memory("0-3"), 2: Memory("2-5")}))
    assert [node.cpus for node in found.nodes] == [(0, 1, 2, 3), (), (4, 5)]
    assert [node.tier for node in found.nodes] == ["ddr"] * 3
    assert len(found.notes) == 1


def test_distances_that_name_offline_nodes(tmp_path):
    machine(tmp_path, {1: Memory("0-1"), 2: Memory("2-3")}, [[20, 10, 21], [20, 21, 10]])
    assert read(tmp_path).node(1).distances == {}
    put(tmp_path, f"{NODES}/possible", "0-2")
    assert read(tmp_path).node(1).distances == {1: 10, 2: 21}
    put(tmp_path, f"{NODES}/possible", "3-5")
    assert read(tmp_path).node(1).distances == {}
