"""Pages over nodes in a proportion: runs, the kernel's own weights, what is asked for, reckoned with and counted."""

import os
import warnings
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe import compiled
from psframe.config.placement_spec import ROLES, spelled_out
from psframe.config.registry import bind
from psframe.errors import UserError
from psframe.memory import audit, weighted
from psframe.memory.arrays import empty
from psframe.memory.budget import Demand, spread
from psframe.memory.pages import Policy
from psframe.memory.placement import TABLE, MissingMemoryError
from psframe.memory.process_site import Site
from psframe.memory.role_placement import Places
from psframe.memory.sysfs import Tree
from psframe.memory.topology import read
from tests.helpers.machine_trees import knl, put, xeon_max

NODE = read("/").memory[0]
PAGE = compiled.numa.PAGE_BYTES


def policy(root, weights, cpus=(0,), shared=False):
    placement = bind("placement", TABLE, spelled_out({"weighted": weights}))()
    found = placement.policy(Site(read(root), cpus), shared)
    assert found.mode == "weighted"
    return dict(zip(found.nodes, found.weights, strict=True))


@given(n=st.integers(0, 5000), weights=st.lists(st.integers(1, 40), min_size=1, max_size=9))
def test_runs_have_each_page_once_and_each_node_its_part(n, weights):
    found = list(weighted.runs(n, weights))
    assert [page for _, begin, end in found for page in range(begin, end)] == list(range(n))
    assert len(found) <= weighted.MOST_RUNS
    of_nodes = Counter()
    for number, begin, end in found:
        of_nodes[number] += end - begin
    rounds = max(1, min(n // sum(weights), weighted.MOST_RUNS // len(weights)))
    for number, weight in enumerate(weights):
        assert abs(of_nodes[number] - n * weight / sum(weights)) < max(weight, rounds)
    if n % sum(weights) == 0 and n // sum(weights) == rounds:
        assert [of_nodes[number] for number in range(len(weights))] == [rounds * weight for weight in weights]


def test_mappings_leave_areas_of_the_kernel_to_others(monkeypatch):
    """Each tensor may be a mapping of its own; an area too many would end the process."""
    assert weighted._most_runs(2) == weighted.MOST_RUNS
    monkeypatch.setattr(Tree, "integer", lambda *_: 3200 + sum(1 for _ in open("/proc/self/maps", "rb")))  # noqa: SIM115
    assert 90 <= weighted._most_runs(2) <= 101
    monkeypatch.setattr(Tree, "integer", lambda *_: 1)
    assert weighted._most_runs(3) == 3
    assert len(list(weighted.runs(10_000, [3, 1], 64))) == 64


def test_runs_are_in_turn():
    assert list(weighted.runs(8, [3, 1])) == [(0, 0, 3), (1, 3, 4), (0, 4, 7), (1, 7, 8)]
    assert list(weighted.runs(3, [1, 9])) == [(1, 0, 3)]


@pytest.mark.parametrize(
    ("own", "weights", "expected"),
    [((3, 1), (3, 1), True), ((9, 3), (3, 1), True), ((1, 1), (3, 1), False), ((3, None), (3, 1), False)],
)
def test_kernels_own_weights_count_by_their_proportion(tmp_path, own, weights, expected):
    for node, weight in zip((2, 5), own, strict=True):
        if weight:
            put(tmp_path, f"{weighted.WEIGHTS}/node{node}", weight)
    assert weighted.has_weights(Tree(tmp_path), (2, 5), weights) == expected


def test_tiers_are_the_nearest_node_or_all_of_what_is_shared(tmp_path):
    root = xeon_max(tmp_path, homes=4)  # 0 to 3 with DDR and CPUs, 4 to 7 with HBM
    assert policy(root, {"hbw": 3, "ddr": 1}, cpus=(9,)) == {2: 1, 6: 3}
    every = dict.fromkeys(range(4), 1) | dict.fromkeys(range(4, 8), 3)
    assert policy(root, {"hbw": 3, "ddr": 1}, shared=True) == every
    assert policy(root, {"ddr": 4, 5: 4}) == {0: 1, 5: 1}
    assert policy(root, {0: 6, 1: 2}) == policy(root, {"0": 6, "1": 2}) == {0: 3, 1: 1}
    assert policy(root, {"ddr": 2, 0: 1}) == {0: 1}


@pytest.mark.parametrize(
    ("weights", "error", "words"),
    [
        ({"hbw": 3, "ddr": 1}, MissingMemoryError, "got hbw, of which there is none"),
        ({0: 1, 99: 1}, MissingMemoryError, r"got \[0, 99\]"),
        ({}, MissingMemoryError, r"got \[\]"),
        ({0: 0}, UserError, r"weights must be a whole number >= 1, got {0: 0}"),
        ({"cxl": 1}, UserError, "got 'cxl'"),
        ({"-1": 1}, UserError, "got '-1'"),
        ({"٣": 1}, UserError, "by number"),
        ({1.5: 1}, UserError, "weights"),
        (3, UserError, "weights"),
    ],
)
def test_weights_that_cannot_be_are_refused(tmp_path, weights, error, words):
    with pytest.raises(error, match=words):
        policy(knl(tmp_path, hbw=0), weights)


def test_budget_takes_of_each_node_its_part():
    demand = Demand("data", 400, Policy("weighted", (0, 4), weights=(1, 3)))
    assert demand.strict
    assert spread([demand], {(0, 0): 1000, (4, 0): 1000}) == {(0, 0): {"data": 100}, (4, 0): {"data": 300}}


def test_audit_counts_no_more_than_a_nodes_part():
    def share(first, second, n_bytes=4000 * PAGE):
        asked = Policy("weighted", (0, 4), weights=(1, 3))
        n_pages = first + second
        wanted = audit._wanted(asked, n_pages, n_bytes)
        return audit.Pages(asked.nodes, Counter({0: first, 4: second}), wanted=wanted).share

    assert share(1000, 3000) == share(1001, 2999) == 1
    assert share(2000, 2000) == pytest.approx(0.75, abs=0.001)
    assert share(4000, 0) == pytest.approx(0.25, abs=0.001)
    pages = audit.Pages((0, 4), Counter({0: 90, 4: 10}), wanted=Counter({0: 25, 4: 75}))
    assert "NUMA node(s) 0 (25 pages), 4 (75 pages), got 35.0%" in audit.complaint("data", "weighted", pages, 0.95)


def policies_of(memory):
    """Return the policies of the areas that a mapping lies in, as the kernel writes them."""
    begin, end = memory.ctypes.data, memory.ctypes.data + len(memory)
    with open("/proc/self/numa_maps") as lines:
        areas = [(int(at, 16), how) for at, how in (line.split()[:2] for line in lines)]
    first = max(at for at, _ in areas if at <= begin)
    return {how for at, how in areas if first <= at < end}


@pytest.mark.skipif(not os.path.exists("/proc/self/numa_maps"), reason="this kernel does not show policies")
@pytest.mark.parametrize("own", [True, False], ids=["kernel", "runs"])
def test_kernel_is_asked_for_its_own_way_or_for_runs(monkeypatch, own):
    """One node shows which way is taken; tests/knl counts the pages of several."""
    if own and not os.path.exists(f"/{weighted.WEIGHTS}/node{NODE}"):
        pytest.skip("this kernel interleaves by no weights: Linux 6.9 does")
    if not own:
        monkeypatch.setattr(weighted, "has_weights", lambda *_: False)
    with warnings.catch_warnings(record=True) as said:
        array = empty(64 * PAGE, "uint8", {"weighted": {NODE: 7}})
    if said:
        pytest.skip(str(said[0].message))
    array[:] = 1
    (how,) = policies_of(array)
    assert how == ("weighted" if own else f"prefer:{NODE}")  # the first words of "weighted interleave:0"
    assert set(compiled.numa.where(np.asarray(array))) == {NODE}


def test_policy_of_a_users_own_must_have_its_weights():
    site = Site(read("/"), tuple(os.sched_getaffinity(0)))
    choices = {role: bind("placement", TABLE, {"name": "default"}) for role in ROLES}
    choices["data"] = bind("placement", TABLE, {"name": "tests.helpers.own:Unweighted"})
    with pytest.raises(UserError, match="positive weights of its nodes"):
        Places(site, choices)
