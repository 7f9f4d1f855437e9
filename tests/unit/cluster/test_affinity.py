"""Who runs on which cores, on machines that are not at hand."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe.cluster.affinity import assign, n_threads
from psframe.memory.topology import Node, Topology


def machine(nodes, cores, threads):
    """Cores numbered node by node; hardware threads as Linux numbers them, after all cores."""
    n = nodes * cores
    every = tuple(tuple(core + n * t for t in range(threads)) for core in range(n))
    of_node = [tuple(sorted(cpu for core in every[i * cores : (i + 1) * cores] for cpu in core)) for i in range(nodes)]
    shown = tuple(Node(i, cpus, "ddr", 1 << 30, 1 << 30) for i, cpus in enumerate(of_node))
    return Topology(shown, every, (), (), 1, "", None, None, None, ())


def cores_of(topology, cpus):
    return [i for i, core in enumerate(topology.cores) if cpus.intersection(core)]


SNC4 = machine(4, 17, 4)
ALL = frozenset(SNC4.cpus)


def test_compact_gives_neighbours_neighbouring_cores():
    assigned = assign("compact", SNC4, [ALL] * 4)
    assert [cores_of(SNC4, cpus) for cpus in assigned] == [list(range(17 * i, 17 * i + 17)) for i in range(4)]
    assigned = assign("compact", SNC4, [ALL] * 68)
    assert [cores_of(SNC4, cpus) for cpus in assigned] == [[i] for i in range(68)]
    assert all(len(cpus) == 4 for cpus in assigned)  # a core's hardware threads stay together


def test_scatter_gives_neighbours_cores_of_different_nodes():
    assigned = assign("scatter", SNC4, [ALL] * 8)
    nodes = [{SNC4.node_of(cpu) for cpu in cpus} for cpus in assigned]
    assert nodes == [{0}, {1}, {2}, {3}] * 2
    assert assigned[0].isdisjoint(assigned[4])


@pytest.mark.parametrize("ranks", [4, 8, 64])
def test_numa_gives_each_rank_a_whole_node(ranks):
    for rank, cpus in enumerate(assign("numa", SNC4, [ALL] * ranks)):
        assert cpus == frozenset(SNC4.node(rank * 4 // ranks).cpus)


@given(st.integers(1, 4), st.integers(1, 9), st.integers(1, 2), st.integers(1, 40))
def test_numa_keeps_a_rank_on_one_node_with_enough_ranks(nodes, cores, threads, ranks):
    topology = machine(nodes, cores, threads)
    assigned = assign("numa", topology, [frozenset(topology.cpus)] * ranks)
    homes = [{topology.node_of(cpu) for cpu in cpus} for cpus in assigned]
    if ranks >= nodes:
        assert all(len(home) == 1 for home in homes)
        assert set().union(*homes) == set(range(nodes))  # and no node is left out
    else:
        assert sum(map(len, homes)) >= nodes


def test_scatter_shares_no_core_while_there_are_spare_ones():
    two = machine(2, 16, 1)
    assigned = assign("scatter", two, [frozenset(range(17))] * 4)  # a launcher that gave 16 cores here, one there
    assert assigned[1] == {16}
    assert sum(map(len, assigned)) == len(frozenset().union(*assigned)) == 17


def test_ranks_more_than_cores_share_nodes_not_cores():
    small = machine(2, 2, 1)
    for kind in ("compact", "scatter", "numa"):
        assigned = assign(kind, small, [frozenset(small.cpus)] * 9)
        assert set(assigned) <= {frozenset({0, 1}), frozenset({2, 3})}


def test_affinity_none_leaves_all_as_it_is():
    assert assign("none", SNC4, [ALL] * 3) == [ALL] * 3


def test_launcher_binding_stays():
    masks = [frozenset({0, 68}), frozenset({1, 69}), frozenset({20}), frozenset({21})]
    assert assign("compact", SNC4, masks) == masks
    by_socket = [frozenset(range(17))] * 2 + [frozenset(range(17, 34))] * 2
    assigned = assign("compact", SNC4, by_socket)
    assert all(cpus < mask for cpus, mask in zip(assigned, by_socket, strict=True))
    assert assigned[0].isdisjoint(assigned[1])


@given(
    st.sampled_from(["numa", "compact", "scatter", "none"]),
    st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 4)),
    st.integers(1, 40),
    st.data(),
)
def test_cpus_of_every_rank_are_within_its_own(kind, shape, ranks, data):
    topology = machine(*shape)
    choices = data.draw(st.lists(st.sets(st.sampled_from(topology.cpus), min_size=1), min_size=1, max_size=3))
    masks = [frozenset(data.draw(st.sampled_from(choices))) for _ in range(ranks)]
    assigned = assign(kind, topology, masks)
    assert len(assigned) == ranks
    assert all(cpus and cpus <= mask for cpus, mask in zip(assigned, masks, strict=True))
    for i in range(ranks):
        assert 1 <= n_threads(topology, masks, i) <= len(topology.cores)


def test_cpus_that_nobody_knows_are_left_alone():
    strange = frozenset({1000, 1001})
    assert assign("compact", SNC4, [strange] * 2) == [strange] * 2
    assert n_threads(SNC4, [strange], 0) == 1


@pytest.mark.parametrize(("ranks", "threads"), [(1, 68), (4, 17), (64, 1), (68, 1), (200, 1)])
def test_threads_are_the_cores_a_rank_has(ranks, threads):
    for kind in ("none", "compact", "numa"):
        masks = assign(kind, SNC4, [ALL] * ranks)
        found = {n_threads(SNC4, masks, rank) for rank in range(ranks)}
        assert found == ({1, 2} if kind == "compact" and ranks == 64 else {threads})  # 4 of 68 cores are to spare


def test_command_limits_threads_to_its_cores():
    code = "import psframe.train.__main__, os; print(os.environ['OMP_NUM_THREADS'], os.environ['NUMBA_NUM_THREADS'])"
    plain = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    one = str(min(os.sched_getaffinity(0)))
    for env, command, wanted in (
        (plain, ["taskset", "-c", one], "1 1"),
        ({**plain, "OMP_NUM_THREADS": "5"}, ["taskset", "-c", one], "5 1"),
    ):
        ended = subprocess.run([*command, sys.executable, "-c", code], env=env, capture_output=True, text=True)
        assert ended.stdout.strip() == wanted, ended.stderr
