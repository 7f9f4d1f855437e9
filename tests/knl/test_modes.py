"""SNC-4, quadrant and cache mode of the emulated machine: what the doctor says, where pages lie, what a run records."""

import pytest

from tests.helpers.suite import IS_FULL
from tests.knl.boot import Memory
from tests.knl.jobs import together

BRIEF = """
for node in /sys/devices/system/node/node[0-9]*; do echo 24 > $node/hugepages/hugepages-2048kB/nr_hugepages; done
uname -r > $OUT/release.txt
python -m tests.knl.probe $OUT/probe.json
"""

PARAMETERS = "placement.parameters=hbw placement.verify=error"
WIDE = "train.epochs=1 model.width=400 placement.verify=error"
RUNS = {
    "main": f"collective=buffer {PARAMETERS}",
    "roles": "collective=buffer train.epochs=1 placement.gradients='{name: hbw, policy: interleave}' "
    "placement.optimizer='{name: hbw, policy: preferred}' placement.data='{name: hbw, huge_pages: 2M}' "
    "placement.exchange=ddr placement.activations='{numa: [1]}' placement.verify=error affinity=compact",
    "shared": f"{WIDE} placement.parameters=hbw placement.gradients=hbw placement.optimizer=ddr",
    "huge": f"{WIDE} placement.parameters='{{name: hbw, huge_pages: 2M}}'",
    "chunked": f"{WIDE} placement.gradients=ddr placement.exchange=hbw "
    "collective='{name: shared, chunk_bytes: 16384}'",
    "direct": f"collective=buffer nn.kernels=direct {PARAMETERS}",
    "plan": "--dry-run placement.parameters=hbw collective=buffer",
}

SCRIPT = f"""
{BRIEF}
{together(4, RUNS)}
train 2 name=halves collective=buffer {PARAMETERS} > $OUT/halves.txt 2>&1
python -m psframe.doctor --json > $OUT/doctor.json
python -m psframe.memory.quadrants 4 > $OUT/quadrants.txt
"""

IN_CACHE_MODE = {
    "main": "placement.parameters=hbw",
    "fallback": "placement.parameters=hbw placement.fallback=ddr",
}
CACHE = f"""
python -m psframe.doctor --json > $OUT/doctor.json
{together(4, IN_CACHE_MODE)}
"""

DOCTOR = "python -m psframe.doctor --json > $OUT/doctor.json\n"

#: of each flat mode: nodes with CPUs and DDR, nodes of MCDRAM
FLAT = {"SNC-4": ([0, 1, 2, 3], [4, 5, 6, 7]), "quadrant": ([0], [1])}


#: emulated, so a boot takes a minute, and with runs over ranks several: the default suite has one without
@pytest.fixture(params=["SNC-4", pytest.param("quadrant", marks=pytest.mark.full)])
def mode(request):
    return request.param


@pytest.fixture
def brief(mode, knl):
    """What every mode is seen to do; where all of a mode is asked for, too, one boot serves both."""
    return knl(mode, SCRIPT if IS_FULL else BRIEF)


@pytest.fixture(params=FLAT)
def flat_mode(request):
    return request.param


@pytest.fixture
def flat(flat_mode, knl):
    """All of it."""
    return knl(flat_mode, SCRIPT)


@pytest.mark.full
def test_doctor_names_tiers_and_modes(mode, brief):
    report = brief.json("doctor.json")
    ddr, hbw = FLAT[mode]
    assert (report["platform"], report["cluster_mode"], report["memory_mode"]) == ("knl", mode, "flat")
    assert {node["node"]: node["tier"] for node in report["nodes"]} == dict.fromkeys(ddr, "ddr") | dict.fromkeys(
        hbw, "hbw"
    )
    assert all(node["bandwidth_mbps"] > 300_000 for node in report["nodes"] if node["tier"] == "hbw")
    assert report["n_cpus"] == report["n_cores"] == 8
    assert report["memkind"]["finds_hbw"]
    assert report["permissions"]["mbind"] == "allowed"
    assert all(1 <= node["huge_pages"][str(2 << 20)]["free"] <= 24 for node in report["nodes"])
    assert set(report["placements"]["hbw"]["tried"]) <= set(map(str, hbw))


@pytest.mark.full
def test_modes_and_tiers_are_told_without_bandwidths(mode, knl):
    report = knl(mode, DOCTOR, Memory(hmat=False)).json("doctor.json")
    assert (report["cluster_mode"], report["memory_mode"]) == (mode, "flat")
    assert [node["node"] for node in report["nodes"] if node["tier"] == "hbw"] == FLAT[mode][1]


@pytest.mark.full
def test_containers_would_have_a_quadrant_each_with_its_mcdram(mode, brief):
    quadrants = brief.text("quadrants.txt").splitlines()
    assert quadrants == (["0-1 0,4", "2-3 1,5", "4-5 2,6", "6-7 3,7"] if mode == "SNC-4" else [])


def test_memory_lies_where_it_was_asked_for(mode, brief):
    ddr, hbw = FLAT[mode]
    found = brief.json("probe.json")["probes"]
    assert {one["home"] for one in found} == set(ddr)
    for one in found:
        nodes = {int(node) for node in one["pages"]}
        own = one["home"] + len(ddr)  # the MCDRAM next to these cores
        name, policy = one["spec"]["name"], one["spec"].get("policy", "bind")
        # page by page, but this kernel makes huge pages by itself: too few to reach every node
        if name == "hbw" and policy == "interleave":
            assert nodes <= set(hbw), one
            assert len(nodes) >= min(2, len(hbw)), one
        elif name == "hbw":
            assert nodes == {own}, one
        elif name in ("default", "ddr"):
            assert nodes == {one["home"]}, one
        elif name == "interleave":
            assert len(nodes) >= 2, one
        elif name == "weighted":
            assert nodes == ({*ddr, *hbw} if one["shared"] else {one["home"], own}), one
            of_mcdram = sum(n for node, n in one["pages"].items() if int(node) in hbw)
            assert of_mcdram / sum(one["pages"].values()) == pytest.approx(0.75, abs=0.01)
        else:
            assert nodes == {max(hbw)}, one
        assert nodes <= set(one["asked"] or nodes)
        assert one["notes"] == []
        assert sum(one["pages"].values()) >= (4 << 20) // 4096


def test_pages_that_numa_balancing_watches_are_found(brief):
    """Linux 6.1 to 6.4 do not tell of them until they are used; psframe uses them, and sees where they are."""
    watched = brief.json("probe.json")["watched"]
    assert "-1" not in watched["located"]
    if brief.text("release.txt").startswith(("6.1.", "6.2.", "6.3.", "6.4.")):
        assert "-1" in watched["told"]


def test_private_hbw_memory_comes_from_memkind_in_every_policy(brief):
    private = [one for one in brief.json("probe.json")["probes"] if one["spec"]["name"] == "hbw" and not one["shared"]]
    assert private
    for one in private:
        huge_pages, policy = one["spec"].get("huge_pages", "none"), one["spec"].get("policy", "bind")
        assert one["memkind"] == (huge_pages == "none" or (huge_pages == "2M" and policy != "interleave")), one


@pytest.mark.full
@pytest.mark.parametrize(("name", "n_ranks"), [("main", 4), ("halves", 2)])
def test_parameter_pages_are_on_mcdram_next_to_their_rank(flat_mode, flat, name, n_ranks):
    """Each rank's parameters are in MCDRAM of a quadrant that it runs in."""
    ddr, hbw = FLAT[flat_mode]
    metrics, placed = flat.run(name)
    assert len(metrics) == 2
    for record in metrics:
        assert record["placed"] == {"parameters": 1.0}
        assert set(record["pages"]["parameters"]) <= set(map(str, hbw))
        # a dedicated server never touches its own
        assert set(record["pages"]["gradients"]) - {"untouched"} <= set(map(str, ddr))
    assert placed["hbw_nodes"] == hbw
    assert len(placed["ranks"]) == n_ranks
    share = max(1, len(ddr) // n_ranks)
    for rank in placed["ranks"]:
        homes = {ddr[share * rank["rank"] + number] if flat_mode == "SNC-4" else 0 for number in range(share)}
        assert rank["numa_node"] in homes
        (node,) = rank["roles"]["parameters"]["pages"]
        assert int(node) in {home + len(ddr) for home in homes}
        assert rank["notes"] == []
    assert "parameters   hbw" in flat.text(f"{name}.txt")


@pytest.mark.full
def test_roles_have_placements_of_their_own(flat_mode, flat):
    ddr, hbw = FLAT[flat_mode]
    metrics, placed = flat.run("roles")
    record = metrics[-1]
    assert set(record["placed"].values()) == {1.0}
    assert {int(node) for node in record["pages"]["gradients"]} <= set(hbw)
    assert {int(node) for node in record["pages"]["data"]} <= set(hbw)
    assert {int(node) for node in record["pages"]["exchange"]} <= set(ddr)
    assert list(record["pages"]["activations"]) == ["1"]
    for rank in placed["ranks"]:
        assert len(rank["cpus"].split("-")) == 2  # two of the eight cores
        where = rank["roles"]["optimizer"].get("pages")
        assert where is None or list(where) == [str(rank["numa_node"] + len(ddr))]


@pytest.mark.full
def test_bits_do_not_depend_on_where_memory_lies(flat):
    assert flat.run("main")[0][0]["params_sha256"] == flat.run("roles")[0][0]["params_sha256"]


@pytest.mark.full
def test_fast_kernels_learn_there_too(flat):
    (found, _), (main, _) = flat.run("direct"), flat.run("main")
    assert found[-1]["loss"] == pytest.approx(main[-1]["loss"], rel=1e-4)
    assert found[-1]["placed"] == {"parameters": 1.0}


@pytest.mark.full
def test_shared_memory_lies_next_to_the_rank_that_sums_it(flat_mode, flat):
    """Each of four reducers has a quarter of the parameters, of their state, and of every worker's gradients."""
    ddr, hbw = FLAT[flat_mode]
    (record,), placed = flat.run("shared")
    assert set(record["placed"].values()) == {1.0}
    assert record["pages"]["parameters"].keys() == set(map(str, hbw))
    assert record["pages"]["optimizer"].keys() == set(map(str, ddr))
    for rank in placed["ranks"]:
        home = rank["numa_node"]
        assert list(rank["roles"]["parameters"]["pages"]) == [str(home + len(ddr))]
        assert list(rank["roles"]["optimizer"]["pages"]) == [str(home)]
        if rank["rank"]:  # a dedicated server has gradients that nobody uses
            assert list(rank["roles"]["gradients"]["pages"]) == [str(home + len(ddr))]


@pytest.mark.full
def test_shared_memory_may_lie_in_reserved_huge_pages(flat_mode, flat):
    ddr, _ = FLAT[flat_mode]
    (record,), placed = flat.run("huge")
    assert record["placed"] == {"parameters": 1.0}
    owners = [rank["roles"]["parameters"].get("pages") for rank in placed["ranks"]]
    assert owners == [{str(len(ddr)): 2 * 512}, None, None, None]  # one page, old and new, is too little to divide


@pytest.mark.full
def test_gradients_in_ddr_pass_through_slots_in_mcdram(flat_mode, flat):
    _, hbw = FLAT[flat_mode]
    (record,), _ = flat.run("chunked")
    assert record["placed"]["exchange"] == 1.0
    assert {int(node) for node in record["pages"]["exchange"]} <= set(hbw)
    assert sum(record["pages"]["exchange"].values()) == 3 * 2 * 4  # two halves of 16 kB for each worker


@pytest.mark.full
def test_shared_memory_changes_no_bit(flat):
    hashes = {flat.run(name)[0][0]["params_sha256"] for name in ("shared", "huge", "chunked")}
    assert len(hashes) == 1


@pytest.mark.full
def test_plan_says_where_parameters_will_lie(flat_mode, flat):
    rows = flat.text("plan.txt").split("CPUs and placement by rank\n")[1].splitlines()[1:5]
    own = [4, 5, 6, 7] if flat_mode == "SNC-4" else [1] * 4
    assert [f" hbw {node} " in row for node, row in zip(own, rows, strict=True)] == [True] * 4


@pytest.fixture
def cached(knl):
    return knl("cache", CACHE)


@pytest.mark.full
def test_doctor_names_cache_mode(cached, knl):
    for report in (cached.json("doctor.json"), knl("cache", DOCTOR, Memory(hmat=False)).json("doctor.json")):
        assert (report["platform"], report["cluster_mode"], report["memory_mode"]) == ("knl", "quadrant", "cache")
        assert [node["tier"] for node in report["nodes"]] == ["ddr"]
        assert "whose MCDRAM is a cache" in report["placements"]["hbw"]["error"]


@pytest.mark.full
def test_hbw_in_cache_mode_is_an_error_that_says_why(cached):
    assert cached.text("main.status") == "2\n"
    said = [line for line in cached.text("main.txt").splitlines() if line.startswith("psframe")]
    assert len(said) == 1
    assert "got a machine whose MCDRAM is a cache (memory mode cache)" in said[0]


@pytest.mark.full
def test_hbw_in_cache_mode_goes_on_with_a_fallback(cached):
    metrics, _ = cached.run("fallback")
    assert metrics[-1]["placement"]["parameters"] == "hbw -> ddr"
    assert list(metrics[-1]["pages"]["parameters"]) == ["0"]
