"""Which memory is high-bandwidth memory, and how the machine was booted, over trees of machines not at hand."""

import pytest

from psframe.errors import UserError
from psframe.memory.topology import read
from tests.helpers import machine_trees as trees
from tests.helpers.machine_trees import A64FX, GIB, MI300A, NODES, Memory, hmat, knl, machine, put, xeon_max


def tiers(topology):
    return {node.number: node.tier for node in topology.nodes}


def modes(topology):
    return topology.platform, topology.cluster_mode, topology.memory_mode


@pytest.mark.parametrize("hmat", [False, True])
@pytest.mark.parametrize(("clusters", "name"), [(1, "quadrant"), (2, "SNC-2"), (4, "SNC-4")])
def test_knl_flat(tmp_path, clusters, name, hmat):
    found = read(knl(tmp_path, clusters, hmat=hmat))
    assert modes(found) == ("knl", name, "flat")
    assert found.ddr == tuple(range(clusters))
    assert found.hbw == tuple(range(clusters, 2 * clusters))
    assert [found.nearest(home, found.hbw) for home in found.ddr] == list(found.hbw)
    assert [found.nearest(home, found.memory) for home in found.ddr] == list(found.ddr)
    assert len(found.cores) == 16
    assert found.cores[1] == (1, 17, 33, 49)
    assert found.cpus == tuple(range(64))
    assert not found.notes
    assert found.nodes[-1].bandwidth_mbps == (400_000 if hmat else None)


@pytest.mark.parametrize(("hbw", "mode"), [(15.8, "flat"), (7.9, "hybrid"), (12, "hybrid"), (4, "hybrid"), (1, "flat")])
def test_knl_by_size(tmp_path, hbw, mode):
    assert modes(read(knl(tmp_path, 4, hbw)))[2] == mode


@pytest.mark.parametrize("clusters", [1, 4])
def test_knl_cache(tmp_path, clusters):
    found = read(knl(tmp_path, clusters, hbw=0))
    assert found.memory_mode == "cache"
    assert set(tiers(found).values()) == {"ddr"}
    assert "MCDRAM" in found.notes[0]
    put(tmp_path, f"{NODES}/node0/memory_side_cache/index1/size", "16G")
    found = read(tmp_path)
    assert (found.memory_mode, found.nodes[0].side_cache_bytes, found.notes) == ("cache", 16 * GIB, ())


@pytest.mark.parametrize("folder", ["var/run", "run"])
def test_knl_by_hwloc(tmp_path, folder):
    place = f"{folder}/hwloc/knl_memoryside_cache"
    knl(tmp_path, hbw=1)
    put(tmp_path, place, "version: 2\ncache_size: 8589934592\ncluster_mode: Quadrant\nmemory_mode: Hybrid50")
    assert read(tmp_path).memory_mode == "hybrid"
    put(tmp_path, place, "memory_mode: Flat")
    assert read(tmp_path).memory_mode == "flat"
    put(tmp_path, place, "memory_mode: Cache")
    found = read(tmp_path)
    assert found.memory_mode == "flat"
    assert "believed" in found.notes[0]
    put(tmp_path, place, "rubbish")
    assert "names no memory mode" in read(tmp_path).notes[0]


def test_knl_hybrid_by_the_kernel(tmp_path):
    knl(tmp_path, hbw=1)
    put(tmp_path, f"{NODES}/node0/memory_side_cache/index1/size", 8 * GIB)
    assert read(tmp_path).memory_mode == "hybrid"


@pytest.mark.parametrize(("homes", "name"), [(2, "quadrant"), (4, "SNC-2"), (8, "SNC-4")])
def test_xeon_max(tmp_path, homes, name):
    found = read(xeon_max(tmp_path / "flat", homes))
    assert modes(found) == ("xeon-max", name, "flat")
    assert found.hbw == tuple(range(homes, 2 * homes))
    assert [found.nearest(home, found.hbw) for home in found.ddr] == list(found.hbw)
    assert found.packages == 2
    assert modes(read(xeon_max(tmp_path / "cache", homes, hbw=0)))[1:] == (name, "cache")
    found = read(xeon_max(tmp_path / "only", homes, ddr=126, hbw=0))
    assert modes(found)[1:] == (name, "HBM-only")
    assert found.hbw == tuple(range(homes))


def test_hbm_is_told_from_cxl_by_distance_and_size(tmp_path):
    nodes = {0: Memory("0-7", 256), 1: Memory("", 64), 2: Memory("", 128), 3: Memory("", 64)}
    rows = [[10, 13, 13, 24], [13, 10, 24, 24], [13, 24, 10, 24], [24, 24, 24, 10]]
    found = read(machine(tmp_path, nodes, rows, cpuinfo=trees.MAX))
    assert tiers(found) == {0: "ddr", 1: "hbw", 2: "other", 3: "other"}
    assert "2-3" in found.notes[0]


@pytest.mark.parametrize(("cpuinfo", "name"), [(A64FX, "a64fx"), (MI300A, "mi300a")])
def test_memory_is_all_hbm(tmp_path, cpuinfo, name):
    nodes = {i: Memory(f"{12 * i}-{12 * i + 11}", 8) for i in range(4)}
    found = read(machine(tmp_path, nodes, cpuinfo=cpuinfo))
    assert modes(found) == (name, None, "HBM-only")
    assert found.hbw == (0, 1, 2, 3)
    assert found.cpu


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        # CXL is slower, and the DDR beside it is still DDR
        ({0: hmat(200, 0, cpus="0-3"), 1: hmat(50, 0)}, "ddr other"),
        ({0: hmat(200, 0, cpus="0-3"), 1: hmat(20, 1, cpus="4-7"), 2: hmat(50, 0)}, "ddr ddr other"),
        # as fast as DDR is not fast; half as fast again is
        ({0: hmat(200, 0, cpus="0-3"), 1: hmat(240, 0), 2: hmat(300, 0)}, "ddr other hbw"),
        # each by the memory of the CPUs that it hangs on
        (
            {0: hmat(100, 0, cpus="0-3"), 1: hmat(400, 1, cpus="4-7"), 2: hmat(400, 0), 3: hmat(400, 1)},
            "ddr ddr hbw other",
        ),
        # firmware that says nothing, or zero, of some nodes
        ({0: hmat(0, 0, cpus="0-3"), 1: hmat(800, 0)}, "ddr other"),
        ({0: hmat(100, 0, cpus="0-3"), 1: Memory("4-7"), 2: hmat(400, 1), 3: Memory()}, "ddr ddr hbw other"),
        # a GPU's bandwidth to its own memory; and the CPUs' to it, beside it
        ({0: hmat(100, 0, cpus="0-3"), 1: hmat(4000, 2), 2: Memory(gib=0)}, "ddr other None"),
        ({0: hmat(100, 0, cpus="0-3"), 1: hmat(400, 0, access=1)}, "ddr hbw"),
        # initiators that a capture lost
        ({0: hmat(100, cpus="0-3"), 1: hmat(400)}, "ddr hbw"),
    ],
)
def test_bandwidth_decides(tmp_path, nodes, expected):
    found = read(machine(tmp_path, nodes))
    assert " ".join(map(str, tiers(found).values())) == expected
    assert found.memory_mode == ("flat" if "hbw" in expected else None)


def test_gpu_as_best_initiator_gives_way_to_the_cpus(tmp_path):
    gpu = Memory("", 96, bandwidth=4000, access={0: (2,)})
    machine(tmp_path, {0: hmat(100, 0, cpus="0-3"), 1: gpu, 2: Memory("", 0)})
    put(tmp_path, f"{NODES}/node1/access1/initiators/node0", "")
    put(tmp_path, f"{NODES}/node1/access1/initiators/read_bandwidth", 90)
    node = read(tmp_path).node(1)
    assert (node.tier, node.bandwidth_mbps, node.initiators) == ("other", 90, (0,))


def test_bandwidth_outweighs_the_cpu(tmp_path):
    knl(tmp_path, hmat=True)
    put(tmp_path, f"{NODES}/node1/access0/initiators/read_bandwidth", 100_000)
    assert tiers(read(tmp_path)) == {0: "ddr", 1: "other"}


def test_kernel_tiers(tmp_path):
    machine(tmp_path, {0: Memory("0-3"), 1: Memory(), 2: Memory()})
    for tier, nodes in ((3, "1"), (4, "0"), (22, "2")):
        put(tmp_path, f"sys/devices/virtual/memory_tiering/memory_tier{tier}/nodelist", nodes)
    assert tiers(read(tmp_path)) == {0: "ddr", 1: "hbw", 2: "other"}


def test_gpu_nodes(tmp_path):
    nodes = {0: Memory("0-3"), 8: Memory("4-7")} | dict.fromkeys(range(250, 256), Memory())
    found = read(machine(tmp_path, nodes, allowed="0,8"))
    assert list(tiers(found).values()) == ["ddr", "ddr"] + ["other"] * 6
    assert (found.memory, found.ddr, found.memory_mode) == ((0, 8), (0, 8), None)
    assert found.notes == (
        "Nothing shows that the memory without CPUs of node(s) 250-255 is fast; MEMKIND_HBW_NODES or "
        "placement.hbw_nodes declares it high-bandwidth memory.",
    )
    assert found.node_of(5) == 8
    with pytest.raises(KeyError):
        found.node(1)


def test_gpu_nodes_are_left_out_where_their_driver_names_them(tmp_path):
    nodes = {0: Memory("0-3"), 8: Memory("4-7"), 250: Memory(), 255: Memory()}
    rows = [[10, 40, 80, 80], [40, 10, 80, 80], [80, 80, 10, 80], [80, 80, 80, 10]]
    machine(tmp_path, nodes, rows)
    for at, said in enumerate(["Node:      250\nStatus:    online", "Node:\t255\n", "Node: 8x", "Node: 77", ""]):
        put(tmp_path, f"proc/driver/nvidia/gpus/0035:0{at}:00.0/numa_status", said)
    found = read(tmp_path)
    assert tiers(found) == {0: "ddr", 8: "ddr"}
    assert found.node(0).distances == {0: 10, 8: 40}
    assert found.offline_nodes == ()
    assert found.notes == ("The memory of node(s) 250,255 is that of GPUs; they are left out.",)


@pytest.mark.parametrize("hbw_nodes", [None, [1]])
def test_declared_nodes(tmp_path, hbw_nodes):
    machine(tmp_path, {0: Memory("0-3"), 1: Memory(), 2: Memory("", 0), 4: Memory()})
    environ = {"MEMKIND_HBW_NODES": "1" if hbw_nodes is None else "4"}
    found = read(tmp_path, hbw_nodes, environ)
    assert tiers(found) == {0: "ddr", 1: "hbw", 2: None, 4: "other"}
    assert (found.memory_mode, found.notes) == ("flat", ())


def test_declared_nodes_are_the_only_ones(tmp_path, monkeypatch):
    knl(tmp_path, 2)
    monkeypatch.setenv("MEMKIND_HBW_NODES", "0")  # of this machine; it says nothing of that one
    assert read(tmp_path).hbw == (2, 3)
    assert read(tmp_path, environ={"MEMKIND_HBW_NODES": " "}).hbw == (2, 3)
    assert read(tmp_path, environ={"MEMKIND_HBW_NODES": "1,3"}).hbw == (1, 3)
    assert read(tmp_path, [3]).hbw == (3,)
    assert tiers(read(tmp_path, [3]))[2] == "other"
    assert read(tmp_path, []).hbw == ()
    found = read(tmp_path, environ={"MEMKIND_HBW_NODES": "all"})
    assert (found.hbw, found.memory_mode) == ((0, 1, 2, 3), "HBM-only")


@pytest.mark.parametrize("value", ["2", "7", "0,7", "!0", "fast", "1-", "0-9999999", ","])
def test_declarations_that_are_refused(tmp_path, value):
    machine(tmp_path, {0: Memory("0-3"), 1: Memory(), 2: Memory("", 0)})
    with pytest.raises(UserError, match=r"MEMKIND_HBW_NODES must .* got .*give nodes of 0-1"):
        read(tmp_path, environ={"MEMKIND_HBW_NODES": value})


@pytest.mark.parametrize("value", [[2], [0, 9], [-1]])
def test_override_that_is_refused(tmp_path, value):
    machine(tmp_path, {0: Memory("0-3"), 1: Memory(), 2: Memory("", 0)})
    with pytest.raises(UserError, match=r"placement.hbw_nodes must .*give nodes of 0-1$"):
        read(tmp_path, value)


def test_node_whose_cpus_are_offline_holds_ordinary_memory(tmp_path):
    machine(tmp_path, {0: Memory("0-3"), 1: Memory()}, offline="4-7")
    put(tmp_path, f"{NODES}/node1/cpu4", "")
    assert tiers(read(tmp_path)) == {0: "ddr", 1: "ddr"}


def test_cpus_without_memory(tmp_path):
    nodes = {0: Memory("0-1", 0), 1: Memory("2-3", 0), 2: hmat(200, 0), 3: hmat(200, 1), 4: hmat(100, 0, 1)}
    rows = [[10, 20, 11, 21, 28], [20, 10, 21, 11, 28], *([20] * 5 for _ in range(3))]
    found = read(machine(tmp_path, nodes, rows))
    assert tiers(found) == {0: None, 1: None, 2: "ddr", 3: "ddr", 4: "other"}
    assert found.nearest(found.home([3]), found.memory) == 3
