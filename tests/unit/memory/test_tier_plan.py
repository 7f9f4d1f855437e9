"""Plans of tiers: against all there are, against greedy ones, with wrong bandwidths; tiers and rates of machines."""

import itertools
import sys
from collections import defaultdict

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from psframe.config.placement_spec import ROLES
from psframe.config.registry import bind
from psframe.errors import UserError
from psframe.memory import auto
from psframe.memory.placement import TABLE
from psframe.memory.process_site import Site
from psframe.memory.role_placement import Places
from psframe.memory.tier_options import LEAD, Item, Option, Tier, Window, options
from psframe.memory.tier_plan import best, fits, greedy
from psframe.memory.topology import read
from tests.helpers.machine_trees import hmat, knl, machine, xeon_max

PAGE = 4096
pages = st.integers(0, 60).map(lambda n: n * 16 * PAGE)  # with parts, and too small for them
moved = st.integers(0, 10**6)
items_of = st.lists(st.tuples(pages, moved, moved), max_size=4).map(
    lambda rows: [Item(str(k), *row) for k, row in enumerate(rows)]
)
tiers_of = st.tuples(st.integers(0, 120), st.sampled_from([100, 300]), st.integers(2, 3)).map(
    lambda t: [Tier("hbw", 400, t[0] * 16 * PAGE), Tier("ddr", 90, t[1] * 16 * PAGE), Tier("other", 20, 1 << 40)][
        : t[2]
    ]
)


def seconds(items, tiers, chosen):
    return sum(chosen[item.place].seconds(item, tiers) for item in items)


#: of tensors that hardly count beside another one, where a search that is content with a part in a million ends early
UNEVEN = [(1507328, 0, 43), (3014656, 0, 63), (2162688, 0, 114016), (393216, 0, 2738)]


#: of which a plan takes a byte more than there is
FULL = [(1179648, 0, 37), (2424832, 0, 58)]


@settings(max_examples=60)
@example(
    items=[Item(str(k), *row) for k, row in enumerate(FULL)],
    tiers=[Tier("hbw", 400, 2949120), Tier("ddr", 90, 6553600)],
    splits=True,
)
@example(
    items=[Item(str(k), *row) for k, row in enumerate(UNEVEN)],
    tiers=[Tier("hbw", 400, 82 * 16 * PAGE), Tier("ddr", 90, 100 * 16 * PAGE), Tier("other", 20, 1 << 40)],
    splits=True,
)
@given(items=items_of, tiers=tiers_of, splits=st.booleans())
def test_plan_is_the_best_of_all_there_are(items, tiers, splits):
    choices = options(tiers, splits)
    able = [[option for option in choices if option.is_for(item)] for item in items]
    ways = itertools.product(*able)
    every = ({item.place: option for item, option in zip(items, way, strict=True)} for way in ways)
    least = min((seconds(items, tiers, chosen) for chosen in every if fits(items, tiers, chosen)), default=None)
    plan, rough = best(items, tiers, splits), greedy(items, tiers, choices)
    assert (plan is None) == (least is None)
    if plan:
        assert plan.seconds == pytest.approx(least)
        assert fits(items, tiers, plan.chosen)
        assert plan.distance == 0
    if rough:
        assert fits(items, tiers, rough.chosen)
        assert rough.bound <= least * (1 + 1e-9)
        assert rough.seconds >= least * (1 - 1e-9)
        assert rough.seconds * (1 - rough.distance) <= least * (1 + 1e-6)


N_LAYERS = 8
windows = st.integers(0, N_LAYERS - 1).flatmap(
    lambda first: st.integers(first, N_LAYERS - 1).map(lambda last: Window(first, last, N_LAYERS))
)
used_of = st.lists(st.tuples(pages, moved, moved, st.none() | windows), max_size=3).map(
    lambda rows: [Item(str(k), *row) for k, row in enumerate(rows)]
)


def is_within(items, tiers, chosen, move_gbps):
    """Return True if all tensors fit, phase by phase, and those that move take no longer than the others' step."""
    on_the_way = sum(2 * item.n_bytes for item in items if chosen[item.place].moves)
    if on_the_way / 1e9 > move_gbps * seconds(items, tiers, chosen) * (1 + 1e-9):
        return False
    for phase in range(2 * N_LAYERS):
        taken = [0] * len(tiers)
        for item in items:
            option = chosen[item.place]
            if not option.moves:
                for tier in option.tiers:
                    taken[tier] += option.n_bytes(item, tier)
                continue
            faster, slower = option.pair
            taken[slower] += item.n_bytes
            w = item.window
            leaves, comes = w.last + 1, 2 * N_LAYERS - 1 - w.last - LEAD
            is_away = leaves <= phase < comes
            if option.moves == "in":
                is_away = not w.first - LEAD <= phase < 2 * N_LAYERS - w.first
            taken[faster] += 0 if is_away else item.n_bytes
        if any(n > tier.n_bytes for n, tier in zip(taken, tiers, strict=True)):
            return False
    return True


@pytest.mark.full
@settings(max_examples=60)
@given(items=used_of, tiers=tiers_of, move_gbps=st.sampled_from([1e-3, 10.0, 1e6]))
def test_plan_with_moves_is_the_best_of_all_there_are(items, tiers, move_gbps):
    choices = options(tiers, False, moves=True)
    able = [[option for option in choices if option.is_for(item)] for item in items]
    every = ({i.place: o for i, o in zip(items, way, strict=True)} for way in itertools.product(*able))
    right = (chosen for chosen in every if is_within(items, tiers, chosen, move_gbps))
    least = min((seconds(items, tiers, chosen) for chosen in right), default=None)
    plan, still = best(items, tiers, move_gbps=move_gbps), best(items, tiers)
    assert (plan is None) == (least is None)
    if plan:
        assert plan.seconds == pytest.approx(least, rel=1e-6)
        assert is_within(items, tiers, plan.chosen, move_gbps)
    if plan and still:
        assert plan.seconds <= still.seconds * (1 + 1e-9)


def test_early_and_late_tensor_take_turns_in_room_for_one():
    early = Item("early", 512 * PAGE, 10**9, 10**9, Window(0, 1, N_LAYERS))
    late = Item("late", 512 * PAGE, 10**9, 10**9, Window(5, 6, N_LAYERS))
    tiers = [Tier("hbw", 400, 512 * PAGE), Tier("ddr", 40, 1 << 30)]
    plan = best([early, late], tiers, move_gbps=1.0)
    assert {place: (option.moves, option.tiers) for place, option in plan.chosen.items()} == {
        "early": ("out", [0]),
        "late": ("in", [1]),
    }
    assert plan.seconds == pytest.approx(6e9 / 400e9, rel=0.01)
    slowly = best([early, late], tiers, move_gbps=0.1)  # in 8 MB a step of 0.1 s and less
    assert not any(option.moves for option in slowly.chosen.values())
    assert {option.moves for option in best([early, late], tiers).chosen.values()} == {""}


def test_without_scipy_the_plan_is_greedy_and_tells_its_distance(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    items = [Item("a", 6 * PAGE, 600), Item("b", 5 * PAGE, 490), Item("c", 5 * PAGE, 490)]
    plan = best(items, [Tier("hbw", 400, 10 * PAGE), Tier("ddr", 90, 1 << 30)])
    assert plan.by == "greedy"
    assert 0 < plan.distance < 0.5
    assert [plan.chosen[place].weights for place in "abc"] == [(1, 0), (0, 1), (0, 1)]


def test_greedy_plan_packs_what_fits_in_one_way_alone():
    items = [Item(name, n * PAGE, 10) for name, n in (("a", 60), ("b", 50), ("c", 50))]
    tiers = [Tier("hbw", 400, 100 * PAGE), Tier("ddr", 90, 60 * PAGE)]
    assert fits(items, tiers, greedy(items, tiers, options(tiers, False)).chosen)


def test_rates_of_roles_must_agree():
    site = Site(read("/"), (0,))
    auto_of = {r: {"name": "auto", "gbps": {"hbw": rate}} for r, rate in (("gradients", 400), ("exchange", 300))}
    chosen = {role: bind("placement", TABLE, auto_of.get(role, {"name": "default"})) for role in ROLES}
    with pytest.raises(UserError, match=r"placement.exchange.gbps must be the same for all roles, got 300 and 400"):
        Places(site, chosen)


def test_activations_alone_move():
    chosen = {role: bind("placement", TABLE, {"name": "default"}) for role in ROLES}
    chosen["exchange"] = bind("placement", TABLE, {"name": "auto", "move_gbps": 2})
    with pytest.raises(UserError, match=r"placement.exchange.move_gbps must be of activations"):
        Places(Site(read("/"), (0,)), chosen)


def test_nothing_of_the_program_is_heard(capfd):
    for n in range(3, 60, 7):
        items = [Item(str(k), (1 + k * 37 % 101) * 300 * PAGE, k * 7919 % 1009, k * 31 % 17) for k in range(n)]
        assert best(items, [Tier("hbw", 400, n * 4000 * PAGE), Tier("ddr", 90, 1 << 50)], True).distance == 0
    assert capfd.readouterr().out == ""


def test_written_data_go_first_and_seldom_read_ones_last():
    items = [Item("read", 4 * PAGE, 100, 0), Item("written", 4 * PAGE, 0, 100), Item("large", 40 * PAGE, 150, 0)]
    for room, fast in ((4, {"written"}), (8, {"written", "read"}), (48, {"written", "read", "large"})):
        plan = best(items, [Tier("hbw", 400, room * PAGE), Tier("ddr", 90, 1 << 30)])
        assert {place for place, option in plan.chosen.items() if option.weights[0]} == fast


def test_split_tensor_takes_the_time_of_both_bandwidths():
    tiers = [Tier("hbw", 300, 1 << 30), Tier("ddr", 100, 1 << 30)]
    item = Item("a", 800 * PAGE, 4 * 10**9)
    plan = best([item], tiers, splits=True)
    assert plan.chosen["a"] == Option((3, 1), adds=True)
    assert plan.seconds == pytest.approx(0.01)  # 4 GB over 400 GB/s
    assert [plan.chosen["a"].n_bytes(item, tier) for tier in (0, 1)] == [600 * PAGE, 200 * PAGE]


@pytest.mark.full
@given(items=items_of, factor=st.sampled_from([2 / 3, 4 / 3]), room=st.integers(0, 200))
def test_bandwidths_wrong_by_a_third_leave_a_plan_of_two_tiers_as_it_is(items, factor, room):
    """Of two tiers, what gains most by page does so whatever their bandwidths are."""
    right = [Tier("hbw", 400, room * 16 * PAGE), Tier("ddr", 90, 1 << 40)]
    wrong = [Tier("hbw", 400 * factor, room * 16 * PAGE), right[1]]
    plan, misled = best(items, right), best(items, wrong)
    assert seconds(items, right, misled.chosen) == pytest.approx(plan.seconds, rel=1e-6)


def test_tensor_that_does_not_fit_as_a_whole_has_a_part_there():
    items = [Item("a", 1000 * PAGE, 10**6), Item("b", 10 * PAGE, 10**9)]
    plan = best(items, [Tier("hbw", 400, 600 * PAGE), Tier("ddr", 90, 1 << 40)])
    assert {place: option.weights for place, option in plan.chosen.items()} == {"a": (1, 1), "b": (1, 0)}


def reaches(root, cpus=(0,), **gbps):
    return {r.name: (r.nodes, round(r.gbps, 3), r.source) for r in auto.tiers(Site(read(root), cpus), gbps)}


def test_tiers_have_the_nearest_memory_and_the_best_known_rates(tmp_path):
    root = xeon_max(tmp_path / "max", homes=4)  # 0 to 3 with DDR and CPUs, 4 to 7 with HBM
    found = reaches(root, (9,))
    assert found["hbw"][:2] == ((6,), 410.0)
    assert found["ddr"][0][0] == 2
    assert found["ddr"][1] == 117.5
    assert "McCalpin" in found["ddr"][2]
    assert reaches(root, (9,), hbw=800.0)["hbw"] == ((6,), 200.0, "given")
    with_hmat = knl(tmp_path / "knl", hmat=True)
    assert {source for *_, source in reaches(with_hmat).values()} == {"firmware (HMAT)"}
    assert list(reaches(with_hmat)) == ["hbw", "ddr"]


def weights_by_tier(site, reaches, option, shared):
    """Return the weights of the nodes that a tensor lies on, by tier."""
    policy = auto.Auto().chosen(site, reaches, option, shared).policy(site, shared)
    found = defaultdict(dict)
    for node, weight in zip(policy.nodes, policy.weights or [1] * len(policy.nodes), strict=True):
        found[site.topology.node(node).tier][node] = weight
    return found


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("cpus", [(0,), (0, 5), (0, 5, 9), (0, 5, 9, 13)], ids=len)
def test_split_tensor_has_its_weight_in_each_tier_however_many_nodes_that_has(tmp_path, cpus, shared):
    site = Site(read(xeon_max(tmp_path, homes=4)), cpus)  # a CPU of each node, of which 0 to 3 have DDR
    near = auto.tiers(site, {})
    assert [reach.name for reach in near] == ["hbw", "ddr"]
    homes = set(range(len(cpus)))
    for fast, slow in [(1, 0), (0, 1), (3, 1), (1, 1), (1, 15), (7, 3)]:
        found = weights_by_tier(site, near, Option((fast, slow)), shared)
        assert sum(found["hbw"].values()) * slow == sum(found["ddr"].values()) * fast, (fast, slow, found)
        assert all(len(set(of_tier.values())) == 1 for of_tier in found.values() if of_tier)
        if fast and slow:
            assert set(found["hbw"]) == {4 + home for home in homes}, "also what is shared has its plan's nodes alone"
            assert set(found["ddr"]) == ({0, 1, 2, 3} if shared else homes)


@pytest.mark.parametrize("shared", [False, True])
def test_split_tensor_has_one_node_of_the_slowest_tier(tmp_path, shared):
    slow = {number: hmat(30_000, 0, gib=64.0) for number in (1, 2)}
    site = Site(read(machine(tmp_path, {0: hmat(100_000, 0, cpus="0-3"), **slow})), (0,))
    found = weights_by_tier(site, auto.tiers(site, {}), Option((3, 2)), shared)
    assert found == {"ddr": {0: 3}, "other": {1: 2}}
    assert set(weights_by_tier(site, auto.tiers(site, {}), Option((0, 1)), shared)["other"]) == {1, 2}


def test_memory_without_cpus_that_is_slow_is_a_tier_behind(tmp_path):
    nodes = {0: hmat(100_000, 0, cpus="0-3"), 1: hmat(30_000, 0, gib=64.0)}
    assert reaches(machine(tmp_path, nodes)) == {
        "ddr": ((0,), 100.0, "firmware (HMAT)"),
        "other": ((1,), 30.0, "firmware (HMAT)"),
    }


def test_one_tier_is_none_to_plan_for(tmp_path):
    assert not auto.has_tiers(Site(read(knl(tmp_path / "cache", hbw=0)), (0,)))
    assert auto.has_tiers(Site(read(knl(tmp_path / "flat")), (0,)))


def test_what_no_step_moves_leaves_fast_memory_to_others():
    items = [Item("idle", 4 * PAGE), Item("busy", 4 * PAGE, 100)]
    plan = best(items, [Tier("hbw", 400, 1 << 30), Tier("ddr", 90, 1 << 30)])
    assert {place: option.weights for place, option in plan.chosen.items()} == {"idle": (0, 1), "busy": (1, 0)}


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"gbps": {"mcdram": 400}}, "gbps must be of tiers, got 'mcdram'"),
        ({"gbps": {"hbw": 0}}, "gbps must be a number > 0"),
        ({"most_mb": 0}, "most_mb must be"),
        ({"move_gbps": -1}, "move_gbps must be"),
        ({"huge_pages": "2M"}, "huge_pages must be one of none, transparent"),
    ],
)
def test_auto_refuses_what_cannot_be(keys, words):
    with pytest.raises(UserError, match=words):
        bind("placement", TABLE, {"name": "auto", **keys})()
