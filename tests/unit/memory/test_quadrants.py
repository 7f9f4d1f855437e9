"""How a machine is divided among containers, over trees of machines not at hand."""

import os
import subprocess
import sys

from psframe.memory.quadrants import divide
from psframe.memory.sysfs import spell
from psframe.memory.topology import read
from tests.helpers.machine_trees import Memory, knl, machine, xeon_max


def parts(root, n, cpus=None):
    topology = read(root)
    divided = divide(topology, n, topology.cpus if cpus is None else cpus)
    return [(spell(mine), spell(nodes)) for mine, nodes in divided]


def test_quadrant_has_its_ddr_and_its_mcdram(tmp_path):
    root = knl(tmp_path, 4, n_cores=16, threads=4)
    assert parts(root, 4) == [
        ("0-3,16-19,32-35,48-51", "0,4"),
        ("4-7,20-23,36-39,52-55", "1,5"),
        ("8-11,24-27,40-43,56-59", "2,6"),
        ("12-15,28-31,44-47,60-63", "3,7"),
    ]


def test_containers_fewer_than_quadrants_have_several(tmp_path):
    root = knl(tmp_path, 4, n_cores=8, threads=1)
    assert parts(root, 2) == [("0-3", "0-1,4-5"), ("4-7", "2-3,6-7")]
    assert parts(root, 1) == [("0-7", "0-7")]
    assert parts(root, 3) == [("0-1", "0,4"), ("2-3", "1,5"), ("4-7", "2-3,6-7")]


def test_containers_more_than_quadrants_divide_what_there_is(tmp_path):
    root = xeon_max(tmp_path, homes=2, n_cores=4, threads=1)
    assert parts(root, 4) == [("0-1", "0,2"), ("0-1", "0,2"), ("2-3", "1,3"), ("2-3", "1,3")]


def test_cache_mode_has_no_memory_apart(tmp_path):
    assert parts(knl(tmp_path, 4, hbw=0, n_cores=4, threads=1), 4) == [(str(k), str(k)) for k in range(4)]


def test_node_alone_with_cpus_is_not_divided(tmp_path):
    assert parts(knl(tmp_path, 1), 4) == []  # quadrant mode: MCDRAM is a node of its own, without CPUs


def test_memory_that_is_equally_near_to_all_is_given_to_all(tmp_path):
    root = machine(tmp_path, {0: Memory("0-1"), 1: Memory("2-3"), 2: Memory("")})
    assert parts(root, 2) == [("0-1", "0,2"), ("2-3", "1-2")]


def test_node_without_memory_of_its_own_has_the_nearest(tmp_path):
    rows = [[10, 12, 20], [12, 10, 20], [20, 20, 10]]
    root = machine(tmp_path, {0: Memory("0"), 1: Memory("1", gib=0), 2: Memory("2")}, rows)
    assert parts(root, 3) == [("0", "0"), ("1", "0"), ("2", "2")]


def test_quadrants_are_of_cpus_that_may_be_used(tmp_path):
    root = knl(tmp_path, 4, n_cores=8, threads=1)
    assert parts(root, 2, cpus=[1, 6, 7]) == [("1", "0,4"), ("6-7", "3,7")]
    assert parts(root, 2, cpus=[6, 7]) == []


def test_quadrants_of_this_machine():
    command = [sys.executable, "-m", "psframe.memory.quadrants", "4"]
    out = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    divided = divide(read("/", environ={}), 4, os.sched_getaffinity(0))
    assert out.splitlines() == [f"{spell(cpus)} {spell(nodes)}" for cpus, nodes in divided]
