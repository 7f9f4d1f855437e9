"""Tensors of emulated machines, by patterns, a plan and in turns: each page where it should be, and the same bits."""

import pytest

from psframe.memory.tensor_names import role_of, tensor_of
from psframe.record.trace import MOVES
from tests.knl.jobs import together

#: most MB of the fast memory: of what a worker's quarter would take, or all ranks together, 100, 60, 30 and 10 %
A_QUARTER, ALL = (100, 1.2, 0.6, 0.2), (100, 5.0, 2.5, 0.8)
SHARES = {"SNC-4": A_QUARTER, "Max": A_QUARTER, "quadrant": ALL, "CXL": ALL}
FAST = {"SNC-4": "hbw", "Max": "hbw", "quadrant": "hbw", "CXL": "ddr"}
IN_QUARTERS = ("SNC-4", "Max")
TRAIN = "train.epochs=1 model.width=400 placement.verify=error "
BY_TENSOR = (
    "placement.activations='{default: ddr, pool*: hbw, maxpool1: hbw}' "
    "placement.parameters='{default: hbw, dense1: ddr}' "
    "placement.optimizer='{default: {numa: [1]}, dense1.weight: {weighted: {hbw: 3, ddr: 1}}}'"
)
ROLES = ("parameters", "gradients", "optimizer", "activations", "exchange", "data")
#: most MB of the fast memory where tensors move: of a rank's quarter, or of all ranks
TURNS = {"SNC-4": 3, "quadrant": 12, "CXL": 12}
SLOW = {"SNC-4": "ddr", "quadrant": "ddr", "CXL": "other"}
#: layers of a megabyte each, and little to compute
DEEP = (
    "sync.mode=allreduce train.epochs=2 model=tests.helpers.tiny:deep model.width=8 "
    "optimizer.lr=0.001 dataset.shape='[1, 21, 21]' dataset.samples=128 placement.verify=error "
)
PAGE = 4096

pytestmark = pytest.mark.full  # each boot has one or two jobs over ranks, of an emulated minute each


def script(mode):
    """Return what runs: all as by default, by tensor, and by plans within shares of MCDRAM."""
    runs = {"plain": TRAIN}
    if FAST[mode] == "hbw":
        runs["named"] = TRAIN + BY_TENSOR.replace("pool*: hbw, ", "")
    for number, most in enumerate(SHARES[mode]):
        auto = f"{{name: auto, most_mb: {most}, split: {str(number == 2).lower()}}}"
        runs[f"auto{number}"] = TRAIN + " ".join(f"placement.{role}='{auto}'" for role in ROLES)
    return together(4, runs)


@pytest.fixture(params=SHARES)
def left(request, knl):
    return request.param, knl(request.param, script(request.param))


def nodes_of(told):
    return {int(node) for node in told.get("pages", {})}


def test_tensors_lie_where_their_patterns_say_and_the_bits_stay(left):
    mode, found = left
    if FAST[mode] != "hbw":
        pytest.skip("the patterns are for high-bandwidth memory, which this machine does not have")
    plain, _ = found.run("plain")
    metrics, placement = found.run("named")
    assert metrics[-1]["params_sha256"] == plain[-1]["params_sha256"]
    fast = {4, 5, 6, 7} if mode in IN_QUARTERS else {1}
    n_fast = 0
    for rank in placement["ranks"]:
        for place, told in rank["roles"].items():
            if told["nodes"]:
                assert nodes_of(told) <= set(told["nodes"]), (rank["rank"], place, told)
            expected = {"parameters/0.Conv2d.weight": "hbw", "parameters/4.Dense.weight": "ddr"}.get(place)
            expected = "hbw" if place == "activations/1.MaxPool2d.kept" else expected
            if expected and told.get("pages"):
                assert told["got"] == expected
                assert (nodes_of(told) <= fast) == (expected == "hbw"), (rank["rank"], place, told)
                n_fast += expected == "hbw"
    assert n_fast > 4
    split = metrics[-1]["pages"]["optimizer/4.Dense.weight"]
    assert sum(n for node, n in split.items() if int(node) in fast) >= sum(split.values()) / 2


def test_plan_is_kept_to_the_page_and_changes_no_bit(left):
    mode, found = left
    plain, _ = found.run("plain")
    on_fast = []
    for number, most in enumerate(SHARES[mode]):
        metrics, placement = found.run(f"auto{number}")
        assert metrics[-1]["params_sha256"] == plain[-1]["params_sha256"]
        n_fast = 0
        for rank in placement["ranks"]:
            fast_pages = 0
            for place, told in rank["roles"].items():
                if role_of(place) in ROLES and told["nodes"]:
                    assert nodes_of(told) <= set(told["nodes"]), (rank["rank"], place, told)
                    if told["got"] == FAST[mode]:
                        fast_pages += sum(told.get("pages", {}).values())
            n_fast += fast_pages
            assert fast_pages * PAGE <= most * 10**6
        on_fast.append(n_fast)
        assert n_fast * PAGE <= most * 10**6 * (4 if mode in IN_QUARTERS else 1)
        check_items(mode, placement)
    assert on_fast[0] > on_fast[1] > on_fast[3] > 0


def check_items(mode, placement):
    """Check that the pages of each tensor are those that the plan reckons with, on the ranks that it is for."""
    plan = placement["plan"]
    of_plan = placement["ranks"][:1] if mode in IN_QUARTERS else placement["ranks"]
    assert plan["by"] == "integer program"
    assert plan["distance"] == 0
    for place, n_bytes, *_ in plan["items"]:
        pages = [rank["roles"][place].get("pages", {}) for rank in of_plan]
        assert sum(sum(of_rank.values()) for of_rank in pages) == n_bytes // PAGE, (place, pages)
        weights, names = plan["chosen"][place], [name for name, *_ in plan["tiers"]]
        tiers = "+".join(name for name, weight in zip(names, weights, strict=True) if weight)
        if tensor_of(place) and n_bytes:
            assert {rank["roles"][place]["got"] for rank in of_plan} == {tiers}


def test_machine_of_fast_memory_alone_has_nothing_to_plan(knl):
    """Every page lies in the rank's own quarter, by a plan, by name and by first touch; there is no ordinary memory."""
    runs = {
        "plain": TRAIN,
        "auto": TRAIN + "placement=auto",
        "named": TRAIN + "placement.parameters=hbw placement.activations=hbw",
        "missing": "placement.parameters=ddr",
    }
    left = knl("HBM-only", together(4, runs) + "python -m psframe.doctor --json > $OUT/doctor.json\n")
    report = left.json("doctor.json")
    assert (report["platform"], report["cluster_mode"], report["memory_mode"]) == ("xeon-max", "SNC-4", "HBM-only")
    assert {node["tier"] for node in report["nodes"]} == {"hbw"}
    plain, _ = left.run("plain")
    for name in ("auto", "named"):
        metrics, placement = left.run(name)
        assert metrics[-1]["params_sha256"] == plain[-1]["params_sha256"]
        assert not placement.get("plan")
        for rank in placement["ranks"]:
            for place, told in rank["roles"].items():
                if role_of(place) == "activations" and told.get("pages"):
                    pages = {node: n for node, n in told["pages"].items() if node != "untouched"}
                    assert len(pages) <= 1, (name, rank["rank"], place, told)
    assert left.text("missing.status") == "2\n"
    said = left.text("missing.txt").splitlines()
    assert next(line for line in said if line.startswith("psframe: ")).startswith("psframe: placement.parameters")
    assert "Traceback" not in left.text("missing.txt")


@pytest.fixture(params=TURNS)
def moved(request, knl):
    mode = request.param
    rates = f"{{{FAST[mode]}: 400, {SLOW[mode]}: 40}}"
    auto = f"record.trace=true placement.activations='{{name: auto, most_mb: %d, move_gbps: 100, gbps: {rates}}}'"
    # a rank alone has a core of the host for its thread that moves pages, and its larger layers take time
    alone = f"{DEEP}{auto % 3} model.width=16 dataset.shape='[1, 15, 15]'"
    jobs = together(4, {"plain": DEEP, "moving": DEEP + auto % TURNS[mode]}) + together(1, {"alone": alone})
    return mode, knl(mode, f"{jobs}python -m psframe.doctor --measure --json > $OUT/measured.json\n")


def test_tensors_move_in_each_step_and_rest_where_the_plan_says(moved):
    mode, found = moved
    plain, _ = found.run("plain")
    metrics, placement = found.run("moving")
    assert metrics[-1]["params_sha256"] == plain[-1]["params_sha256"]
    plan = placement["plan"]
    assert set(plan["moves"].values()) == {"in", "out"}, plan
    of_plan = placement["ranks"][:1] if mode == "SNC-4" else placement["ranks"]
    sizes = {place: n_bytes // PAGE for place, n_bytes, *_ in plan["items"]}
    for place, kind in plan["moves"].items():
        rests = FAST[mode] if kind == "out" else SLOW[mode]
        for rank in of_plan:
            told = rank["roles"][place]
            assert told["got"] == rests
            assert {int(node) for node in told["pages"]} <= set(told["nodes"]), (place, told)
        for record in metrics:  # at the end of each epoch, when they have moved
            assert record["placed"][place] == 1.0, (place, record["placed"])
        assert sum(sum(rank["roles"][place]["pages"].values()) for rank in of_plan) == sizes[place]
    n_a_step = 2 * sum(sizes[place] for place in plan["moves"]) * (4 if mode == "SNC-4" else 1)
    for record in metrics:
        print(mode, n_a_step, record["pages_moved"], record["pages_late"], record["epoch_s"])
        assert 0 < record["pages_moved"] <= 4 * n_a_step
        assert record["pages_late"] <= record["pages_moved"]


def test_tensors_come_in_time_where_a_core_moves_them(moved):
    _, found = moved
    metrics, placement = found.run("alone")
    assert set(placement["plan"]["moves"].values()) == {"in", "out"}
    for record in metrics:
        # half of what moves comes, and all of that would be late without that core; an emulated one has its turns alone
        assert 0 <= record["pages_late"] < record["pages_moved"] / 2, record


def test_bandwidths_of_tiers_and_of_moves_between_them_are_measured(moved):
    mode, found = moved
    measured = found.json("measured.json")["measured"]
    fast, slow = FAST[mode], SLOW[mode]
    assert set(measured["gbps"]) == {fast, slow}
    assert set(measured["move_gbps"]) == {f"{fast} to {slow}", f"{slow} to {fast}"}
    assert all(rate["median"] > 0 for kind in ("gbps", "move_gbps") for rate in measured[kind].values())


def test_moves_are_in_the_trace_behind_and_before_the_passes_that_use_them(moved):
    mode, found = moved
    _, placement = found.run("moving")
    (path,) = (found.folder / "runs").glob("moving-2*/trace.json")
    spans = [s for s in found.json(path.relative_to(found.folder))["traceEvents"] if s["ph"] == "X" and not s["pid"]]
    moves = {tensor_of(place): kind for place, kind in placement["plan"]["moves"].items()}
    seen = set()
    for span in spans:
        if span["tid"] == MOVES:
            tensor, _, said = span["name"].partition(": ")
            way = said.partition(" to ")[2]
            seen.add((moves[tensor], way))
            if (moves[tensor], way) == ("out", "slow memory"):
                index = tensor.partition(".")[0]
                ends = [s["ts"] + s["dur"] for s in spans if s["name"] == f"{index} Conv2d forward"]
                assert any(end <= span["ts"] for end in ends), span
    print(mode, sorted(seen))
    assert {("out", "slow memory"), ("in", "fast memory")} <= seen
