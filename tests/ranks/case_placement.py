"""Training with memory placed by role: the same bits, and a record of where every page is."""

import json
import os
import unittest
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from unittest import SkipTest
from unittest.mock import patch

from psframe.cluster.joining import join
from psframe.config.placement_spec import ROLES
from psframe.memory import role_placement, tier_options
from psframe.memory.auto import Auto, Reach
from psframe.memory.placement import Numa
from psframe.memory.tensor_names import role_of, tensor_of
from psframe.memory.topology import read
from psframe.record.trace import MOVES
from psframe.train import moving, tier_places
from psframe.train.plan import plan
from psframe.tune import stretch
from tests.ranks.harness import ranks
from tests.ranks.nodes import own_network
from tests.ranks.training import TINY, folder, hashes, train

NODE = read("/").memory[0]
FAST = f"placement.hbw_nodes=[{NODE}]"  # this machine's own memory, declared to be high-bandwidth memory
SPECS = (
    "ddr",
    "hbw",
    "{name: hbw, policy: preferred}",
    "{name: hbw, policy: interleave}",
    "{name: hbw, huge_pages: transparent}",
    f"{{numa: [{NODE}]}}",
    "interleave",
    f"{{weighted: {{hbw: 3, {NODE}: 1}}}}",
    "tests.helpers.own:Upwards",
)


SEVERAL = (
    ["parallel.micro_batches=2"],
    ["parallel={model: 2, convolutions: data}"],
    ["train.reproducible=any_workers", "train.global_batch=24", "train.blocks=8"],
)


def everywhere(spec):
    return [f"placement.{role}={spec}" for role in ROLES]


@ranks(1, 2, 3, 4, 7)
def roles_lie_where_they_were_asked_for_and_the_bits_stay(world):
    with folder(world) as where:
        plain = hashes(world, world.size, where, "train.epochs=1")
        for spec in SPECS:
            declared = [FAST] if "hbw" in spec else []
            (record,), _, run = train(world, world.size, where, "train.epochs=1", *everywhere(spec), *declared)
            assert record["params_sha256"] == plain[0], spec
            kept = {"parameters", "gradients", "optimizer", "activations", "data"}
            assert kept <= set(record["pages"]) <= set(ROLES), record["pages"]
            for role, pages in record["pages"].items():
                assert record["placed"][role] == 1.0, (spec, role, record)
                assert list(pages) == [str(NODE)], (spec, role, pages)
            everyone = json.loads((run / "placement.json").read_text())["ranks"]
            assert [of_rank["rank"] for of_rank in everyone] == list(range(world.size))
            shared = [of_rank["rank"] for of_rank in everyone if "pages" in of_rank["roles"]["data"]]
            assert shared == [0]  # one segment a node
            world.Barrier()


@ranks(1, 2, 3, 4, 7, full=True)
def tensors_are_placed_and_counted_one_by_one_and_the_bits_stay(world):
    """Of several modes, collectives and cuts of the network, each with vectors and slots in other memory."""
    fast = f"{{default: {{numa: [{NODE}]}}, '*.bias': ddr, 'dense*': {{weighted: {{{NODE}: 2}}}}, conv1: interleave}}"
    asked = [f"placement.{role}={fast}" for role in ("parameters", "gradients", "optimizer")]
    asked += [f"placement.activations={{default: interleave, 'conv1.kept': {{numa: [{NODE}]}}}}"]
    ways = [[], ["sync.mode=allreduce", "collective=buffer"], ["sync.mode=async_ps"], ["train.precision=bf16"]]
    ways += [["parallel.pipeline=2", "sync.mode=allreduce"]] if world.size in (2, 4) else []
    with folder(world) as where:
        for way in ways:
            plain = hashes(world, world.size, where, "train.epochs=1", *way) if "async_ps" not in str(way) else None
            (record,), _, run = train(
                world, world.size, where, "train.epochs=1", *way, *asked, "placement.verify=error"
            )
            assert plain is None or record["params_sha256"] == plain[0], way
            tensors = {role_of(place): tensor_of(place) for place in record["pages"] if tensor_of(place)}
            assert set(tensors) >= {"parameters", "activations"}, record["pages"]
            assert {record["placed"][place] for place in record["placed"]} == {1.0}, record["placed"]
            everyone = json.loads((run / "placement.json").read_text())["ranks"]
            names = [set(of_rank["roles"]) for of_rank in everyone]
            assert all(of_rank == names[0] for of_rank in names)
            world.Barrier()


@ranks(2)
def patterns_that_match_no_tensor_of_any_rank_are_one_error(world):
    with folder(world) as where:
        for spec in ("{default: ddr, conv9: ddr}", "{default: ddr, conv1: nowhere}"):
            train(world, 2, where, f"placement.parameters={spec}", expect=2)
        train(world, 2, where, "placement.data={default: ddr, x: ddr}", expect=2)
        assert not list((where / "runs").glob("*"))


@ranks(4)
def nodes_of_one_tier_and_of_several_plan_each_their_own(world):
    """This machine's memory is two tiers of one node, on the second node of the job alone."""
    reaches = [Reach("hbw", (NODE,), 400.0, "given"), Reach("ddr", (NODE,), 90.0, "given")]
    has_several = world.rank % 2
    with own_network(world, has_several), folder(world) as where:
        plain = train(world, 4, where, "train.epochs=1", "sync.mode=allreduce")[0][0]
        with (
            patch.object(role_placement, "has_tiers", lambda site: bool(has_several)),
            patch.object(tier_places, "tiers_of", lambda site, gbps: reaches),
            patch.object(Auto, "chosen", lambda *_: Numa(nodes=[NODE])),
        ):
            keys = ("train.epochs=1", "sync.mode=allreduce", "placement=auto", "placement.data=auto")
            keys = (*keys, "placement.verify=error")
            (record,), _, run = train(world, 4, where, *keys)
        assert record["params_sha256"] == plain["params_sha256"]
        everyone = json.loads((run / "placement.json").read_text())["ranks"]
        tensors = [{tensor_of(place) for place in of_rank["roles"]} - {""} for of_rank in everyone]
        assert [bool(names) for names in tensors] == [False, False, True, True]
        assert [of_rank["node"] for of_rank in everyone] == [0, 0, 1, 1]


DEEP = (
    "train.epochs=1",
    "optimizer.lr=0.001",
    "model=tests.helpers.tiny:deep",
    "nn.kernels=blas",
    "sync.mode=allreduce",
)


@contextmanager
def two_tiers():
    """Let this machine's memory be two tiers of one node, between which the kernel finds all pages moved already."""
    if not find_spec("scipy"):
        raise SkipTest("no scipy here, without which nothing moves in a step")
    reaches = [Reach("hbw", (NODE,), 400.0, "given"), Reach("ddr", (NODE,), 20.0, "given")]
    with (
        patch.object(role_placement, "has_tiers", lambda site: True),
        patch.object(tier_options, "PART_BYTES", 1),
        patch.object(tier_places, "tiers_of", lambda site, gbps: reaches),
        patch.object(moving, "tiers", lambda site, gbps: reaches),
        patch.object(Auto, "chosen", lambda *_: Numa(nodes=[NODE])),
    ):
        yield


def moves_of(world):
    return f"placement.activations={{name: auto, most_mb: {0.5 * world.size}, move_gbps: 100}}"


@ranks(1, 2, 3)
def tensors_that_move_in_steps_change_no_bit(world):
    with folder(world) as where:
        (plain,), *_ = train(world, world.size, where, *DEEP)
        with two_tiers():
            trace = ["record.trace=true", moves_of(world), "placement.verify=error"]
            (record,), _, run = train(world, world.size, where, *DEEP, *trace)
            for several in SEVERAL[world.size - 1 :: 3]:  # passes a step
                *_, still = train(world, world.size, where, *DEEP, *trace, *several)
                everyone = json.loads((still / "placement.json").read_text())
                assert not everyone["plan"]["moves"], several
                assert all("move_gbps has no effect" in str(of_rank["notes"]) for of_rank in everyone["ranks"])
        assert record["params_sha256"] == plain["params_sha256"]
        assert "pages_moved" not in plain
        told = json.loads((run / "placement.json").read_text())["plan"]
        moves = told["moves"]
        assert set(moves.values()) == {"in", "out"}, moves
        n_pages = sum(n_bytes // 4096 for place, n_bytes, *_ in told["items"] if place in moves)
        n_steps = -(-203 // (8 * world.size))
        assert 0 <= record["pages_late"] <= record["pages_moved"] <= 2 * n_steps * n_pages
        spans = json.loads((run / "trace.json").read_text())["traceEvents"]
        named = {span["name"].partition(":")[0] for span in spans if span.get("tid") == MOVES and span["ph"] == "X"}
        assert named <= {tensor_of(place) for place in moves}
        assert named or not record["pages_moved"], spans  # on a machine that is busy all may come too late


@ranks(2)
def candidates_of_tuning_move_as_training_does(world):
    with folder(world) as where, two_tiers():
        if world.rank == 0:
            (where / "config.yaml").write_text(TINY)
        cluster = join(world)
        made = plan.make(cluster, str(where / "config.yaml"), [*stretch.BESIDE, *DEEP[1:], moves_of(world)])
        candidate = stretch.Candidate(cluster, made, None)
        assert candidate.run.mover.travellers
        moved = candidate.run.mover.n_moved
        for _ in range(2):
            stretch.train(candidate.run, 3)
        assert candidate.run.mover.n_moved > moved
        candidate.close()


@ranks(1, 3)
def auto_places_nothing_on_a_machine_of_one_tier(world):
    if len({node.tier for node in read("/").nodes if node.tier}) > 1:
        raise unittest.SkipTest("this machine has several tiers")
    with folder(world) as where:
        plain = train(world, world.size, where, "train.epochs=1")[0][0]
        record, _, run = train(world, world.size, where, "train.epochs=1", "placement=auto", "placement.data=auto")
        assert record[0]["params_sha256"] == plain["params_sha256"]
        assert record[0]["pages"].keys() == plain["pages"].keys()
        assert record[0]["placement"]["parameters"] == "auto"
        assert "plan" not in json.loads((run / "placement.json").read_text())


@ranks(1, 3)
def pages_are_counted_by_default_and_nothing_is_asked(world):
    with folder(world) as where:
        record = train(world, world.size, where, "train.epochs=1")[0][0]
        assert record["placed"] == {}
        assert set(record["placement"].values()) == {"default"}
        assert record["pages"]["parameters"][str(NODE)] == (2 if world.size > 1 else 1)  # the node's, old and new


@ranks(3)
def memory_that_does_not_exist_is_an_error_or_falls_back(world):
    if read("/").hbw:
        raise unittest.SkipTest("this machine has high-bandwidth memory")
    with folder(world) as where:
        train(world, 3, where, "placement.gradients=hbw", expect=2)
        assert not (where / "runs").exists()
        train(world, 3, where, "placement.gradients={numa: [4000]}", expect=2)
        for fallback in ("ddr", "default"):
            record = train(world, 3, where, "placement.gradients=hbw", f"placement.fallback={fallback}")[0][0]
            assert record["placement"]["gradients"] == f"hbw -> {fallback}"


@ranks(3)
def role_that_does_not_fit_is_an_error_or_is_spilled(world):
    if any(free for node in read("/").nodes for _, free in node.huge_pages.values()):
        raise unittest.SkipTest("huge pages have been reserved here, so that something fits into them")
    with folder(world) as where:
        asked = ["placement.optimizer={name: hbw, huge_pages: 2M}", FAST]
        train(world, 3, where, *asked, expect=2)
        train(world, 3, where, *asked, "placement.spill=[gradients]", expect=2)
        assert not list((where / "runs").glob("*"))
        spilled = train(world, 3, where, *asked, "placement.spill=[gradients, optimizer]")[0][0]
        assert spilled["placement"]["optimizer"] == "hbw -> default"
        assert spilled["placement"]["gradients"] == "default"  # moving them would have made no room
        slots = ["placement.gradients={name: hbw, huge_pages: 2M}", "placement.exchange=hbw", FAST]
        record = train(world, 3, where, *slots, "placement.spill=[gradients]")[0][0]
        assert record["params_sha256"] == spilled["params_sha256"]  # the collective was built as it was reckoned with
        anywhere = ["placement.activations={name: default, huge_pages: 2M}"]
        train(world, 3, where, *anywhere, expect=2)
        assert train(world, 3, where, *anywhere, "placement.spill=[activations]")[0]


@ranks(1, 3)
def pages_elsewhere_end_the_run_or_are_recorded(world):
    with folder(world) as where:
        lie = ["placement.parameters=tests.helpers.own:Nowhere"]
        train(world, world.size, where, *lie, "placement.verify=error", expect=2)
        record = train(world, world.size, where, *lie)[0][0]
        assert record["placed"] == {"parameters": 0.0}
        assert train(world, world.size, where, *lie, "placement.verify=error", "placement.minimum=0")[0]


@ranks(1, 2, 4)
def ranks_are_bound_within_what_they_were_given(world):
    before = os.sched_getaffinity(0)
    with folder(world) as where:
        for kind in ("compact", "scatter", "numa", "none"):
            run = train(world, world.size, where, f"affinity={kind}", "train.epochs=1")[2]
            now = os.sched_getaffinity(0)
            assert now <= before
            if kind == "compact" and world.size == len(before) == len(read("/").cores):
                assert len(now) == 1
            here = json.loads((run / "placement.json").read_text())["ranks"][world.rank]
            assert here["numa_node"] == read("/").home(now)
            for thread in os.listdir("/proc/self/task"):
                with suppress(ProcessLookupError):  # a thread that has ended since
                    os.sched_setaffinity(int(thread), before)
            world.Barrier()


@ranks(4)
def nodes_place_each_its_own(world):
    with own_network(world, world.rank % 2), folder(world) as where:
        (record,), _, run = train(world, 4, where, "train.epochs=1", *everywhere("hbw"), FAST, "placement.verify=error")
        assert set(record["placed"].values()) == {1.0}
        everyone = json.loads((run / "placement.json").read_text())["ranks"]
        assert [of_rank["node"] for of_rank in everyone] == [0, 0, 1, 1]
        shared = [of_rank["rank"] for of_rank in everyone if "pages" in of_rank["roles"]["data"]]
        assert shared == [0, 2]  # each node's first
        train(world, 4, where, "placement.gradients={numa: [4000]}", expect=2)
