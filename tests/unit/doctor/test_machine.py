"""Facts of a machine as the doctor gives them, each from a file that says something else, and its table and limits."""

import os
import resource
from collections import namedtuple

import pytest

from psframe.doctor import machine
from psframe.memory.free_memory import MACHINE, Room
from psframe.memory.topology import read
from tests.helpers import machine_trees as trees
from tests.helpers.machine_trees import GIB, NODES, Memory, put

MIB = 1 << 20


@pytest.fixture
def found(tmp_path):
    """Facts of a machine with fast memory behind a cache, of which a cpuset keeps this process away."""
    near = Memory("0-3", 8, 6, bandwidth=90_000, latency=110, access={0: (0,)})
    fast = Memory("", 4, 1, bandwidth=300_000, latency=130, access={0: (0,)}, side_cache=MIB)
    trees.machine(tmp_path, {0: near, 2: fast}, [[10, 31], [17, 10]], allowed="0", packages=2, offline="4-5")
    for node, kilobytes, reserved, free in ((2, 2048, 9, 0), (2, 1 << 20, 5, 4), (0, 1 << 20, 0, 0)):
        for name, number in (("nr", reserved), ("free", free)):
            put(tmp_path, f"{NODES}/node{node}/hugepages/hugepages-{kilobytes}kB/{name}_hugepages", number)
    return machine.machine(read(tmp_path))


def test_node_has_each_number_under_its_name(found):
    near, fast = found["nodes"]
    usable = [node.pop("free_bytes") / GIB for node in (near, fast)]
    assert 5 < usable[0] < 6
    assert 0 < usable[1] < 1
    assert near == {
        "node": 0, "tier": "ddr", "cpus": "0-3", "n_cpus": 4, "total_bytes": 8 * GIB, "bandwidth_mbps": 90_000,
        "latency_ns": 110, "distances": {"0": 10, "2": 31}, "side_cache_bytes": 0, "allowed": True,
        "huge_pages": {str(2 * MIB): {"reserved": 8, "free": 3}, str(GIB): {"reserved": 0, "free": 0}},
    }  # fmt: skip
    assert fast == {
        "node": 2, "tier": "hbw", "cpus": "", "n_cpus": 0, "total_bytes": 4 * GIB, "bandwidth_mbps": 300_000,
        "latency_ns": 130, "distances": {"0": 17, "2": 10}, "side_cache_bytes": MIB, "allowed": False,
        "huge_pages": {str(2 * MIB): {"reserved": 9, "free": 0}, str(GIB): {"reserved": 5, "free": 4}},
    }  # fmt: skip


def test_machine_is_counted(found):
    wanted = {"packages": 2, "n_cpus": 4, "cpus": "0-3", "offline_cpus": "4-5", "n_nodes": 2, "offline_nodes": ""}
    assert {key: found[key] for key in wanted} == wanted


def test_table_shows_the_free_huge_pages_of_those_that_are_reserved(found):
    lines = machine._nodes(found["nodes"]).splitlines()
    free = [f"{node['free_bytes'] / 1e6:,.0f}" for node in found["nodes"]]
    assert [" ".join(line.split()) for line in lines] == [
        "node tier CPUs total MB free MB MB/s ns huge pages",
        f"0 ddr 0-3 8,590 {free[0]} 90000 110 2048 kB: 3 of 8",
        f"2 hbw - 4,295 {free[1]} 300000 130 2048 kB: 0 of 9, 1048576 kB: 4 of 5 not allowed (cpuset.mems)",
    ]


Disk = namedtuple("Disk", "f_frsize f_bsize f_blocks f_bfree f_bavail")
JOB = Room((2, 7), 3_000_000_000, "memory.max=4,000,000,000 of the cgroup /job")


@pytest.mark.parametrize(
    ("locked", "room", "quotas", "wanted", "words"),
    [
        (65536, JOB, {(2, 7): 4.0, (2, 8): 1.5, (1, 9): 2.0}, (65536, 3_000_000_000, JOB.limit, 1.5),
         ("memlock 65,536 bytes", f"memory 3,000 MB free by {JOB.limit}; 1.5 CPUs' time by cgroup")),
        (resource.RLIM_INFINITY, Room(MACHINE, 5_000_000), {}, (None, 5_000_000, None, None),
         ("memlock unlimited", "memory 5 MB free\n")),
    ],
)  # fmt: skip
def test_limits_are_those_that_bind(monkeypatch, locked, room, quotas, wanted, words):
    monkeypatch.setattr(resource, "getrlimit", {resource.RLIMIT_MEMLOCK: (locked, resource.RLIM_INFINITY)}.get)
    monkeypatch.setattr(os, "statvfs", {"/dev/shm": Disk(1000, 7, 9_000_000, 6_000_000, 4_000_000)}.get)
    monkeypatch.setattr(machine, "available", lambda: room)
    monkeypatch.setattr(machine.cgroups, "cpus", lambda tree: quotas)
    limits = machine.limits()
    keys = ("memlock_bytes", "memory_bytes", "memory_limit", "cpus")
    assert tuple(limits.pop(key) for key in keys) == wanted
    assert limits == {"dev_shm_bytes": 9_000_000_000, "dev_shm_free_bytes": 4_000_000_000}
    report = {
        "limits": {**limits, **dict(zip(keys, wanted, strict=True))},
        "memkind": {"version": "1.2", "finds_hbw": False, "error": None},
        "permissions": {"mbind": "allowed"},
        "mpi": {"library": "an MPI", "error": None},
        "bfloat16": "none",
        "ranks": [],
    }
    shown = "\n".join(machine._live(report))
    for word in (*words, "/dev/shm 9,000 MB, 4,000 MB free\n"):
        assert word in shown
