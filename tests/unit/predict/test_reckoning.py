"""What psframe.predict reckons: machines, computing, exchanges, epochs; and what it tells."""

import json
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframe.errors import UserError
from psframe.predict import compute, exchange, machine, measure, measured, published, view
from psframe.predict.compute import Core
from psframe.predict.machine import Check, Exchange
from psframe.predict.paces import predicted
from psframe.predict.search import resized
from tests.helpers.predictions import job, way, work
from tests.helpers.suite import IS_FULL

NAMES = machine.names()
CORE = Core(100.0, 10.0, 1.0)


@pytest.mark.parametrize("name", NAMES)
def test_machine_is_whole_and_says_where_each_figure_is_from(name):
    found = machine.read(name)
    assert machine.link(found.link)
    figures = [f for f in vars_of(found) if isinstance(f, machine.Figure)]
    assert len(figures) >= 9
    assert all(len(figure.source) > 5 for figure in figures)
    tier = found.tier(None)
    assert tier.core_gbps.value < tier.gbps.value
    assert found.copy_gbps.value <= tier.core_gbps.value


def vars_of(struct):
    for key in struct.__struct_fields__:
        value = getattr(struct, key)
        yield value
        if isinstance(value, dict):
            for of in value.values():
                yield from vars_of(of)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"memory": "nvram"}, "must be a tier of the machine"),
        ({"cores": {"value": 0, "source": "x y"}}, "machine profile must be"),
        ({"cores": {"value": 2.5, "source": "x y"}}, "cores must be a whole number"),
        ({"gflops": {"value": float("inf"), "source": "x y"}}, "gflops"),
        ({"link": "40"}, "link must name a link"),
        ({"cores": {"value": 4}}, "source"),
        ({"colour": 1}, "colour"),
        ({"tiers": []}, "tiers"),
    ],
)
def test_profiles_that_are_none_are_refused(tmp_path, change, told):
    path = tmp_path / "m.yaml"
    path.write_text(json.dumps(msgspec.to_builtins(machine.read(NAMES[0])) | change))
    with pytest.raises(UserError, match=told):
        machine.read(str(path))
    with pytest.raises(UserError, match="knl-7250-ddr"):
        machine.read(str(tmp_path / "missing.yaml"))


def test_profile_that_is_written_is_read_again(tmp_path):
    made = msgspec.structs.replace(
        machine.read("a64fx"), exchanges=[Exchange("allreduce shared", 4, 1000, 1e-5)], checks=[Check("x", 2, 1.0, 1.1)]
    )
    machine.write(str(tmp_path / "m.yaml"), made)
    assert machine.read(str(tmp_path / "m.yaml")) == made
    with pytest.raises(UserError, match="can be written"):
        machine.write(str(tmp_path / "no" / "m.yaml"), made)


def test_step_on_the_same_core_takes_what_it_took():
    for n, seconds in zip((32, 8), work().step_s, strict=True):
        assert compute.step_s(work(), n, CORE) == pytest.approx(seconds)


def test_roof_is_the_larger_of_computing_and_moving():
    core = Core(gflops=2.0, gbps=4.0, scalar=1.0)
    assert compute.roof_s(6e9, 4e9, core, 1) == 3.0  # computing takes 3 s, moving 1 s
    assert compute.roof_s(6e9, 40e9, core, 1) == 10.0
    assert compute.roof_s(6e9, 40e9, core, 2) == 5.0


#: ranks on so many nodes, threads of each rank, and the cores of a node of 68 that they keep busy
BUSY = [(1, 1, 1, 1), (1, 1, 17, 17), (68, 1, 1, 68), (17, 1, 4, 68), (4, 1, 17, 68), (68, 1, 4, 68), (272, 1, 1, 68)]
BUSY += [(68, 2, 1, 34), (68, 2, 2, 68), (9, 2, 10, 50)]


@pytest.mark.parametrize(("ranks", "nodes", "threads", "busy"), BUSY)
def test_busy_cores_of_a_node_share_its_bandwidth_be_they_of_ranks_or_threads(ranks, nodes, threads, busy):
    known, plan = job(), way(ranks=ranks, nodes=nodes, threads=threads)
    core, tier = known.core(plan), known.machine.tier(None)
    assert core.gbps == pytest.approx(min(tier.core_gbps.value, tier.gbps.value / busy))
    assert (core.gflops, core.scalar) == (known.machine.gflops.value, known.machine.scalar.value)
    measured_core = replace(known, here=True).core(plan)
    assert measured_core == Core(work().gflops, work().gbps, work().scalar), "it was measured beside other ranks"


FACTORS = st.floats(0.05, 20)


@given(FACTORS, st.integers(1, 1000))
def test_core_so_much_faster_in_all_takes_so_much_less(factor, n):
    faster = Core(CORE.gflops * factor, CORE.gbps * factor, CORE.scalar * factor)
    assert compute.step_s(work(), n, faster) * factor == pytest.approx(compute.step_s(work(), n, CORE))


@given(FACTORS)
def test_layer_keeps_its_bound(factor):
    """More operations a second help where operations bound, and nowhere else."""
    parts = compute.by_part(work(layers=work().layers[1:]), 32, Core(CORE.gflops * factor, CORE.gbps, CORE.scalar))
    assert parts["forward"] == pytest.approx(6e-4)
    faster = compute.by_part(work(layers=work().layers[:1]), 32, Core(CORE.gflops * 1e6, CORE.gbps, CORE.scalar))
    least = compute.line((32, 8), (2e-3, 6e-4))[0]
    assert least < faster["forward"] < 2e-3


@given(st.floats(0, 1), st.floats(0, 1))
def test_line_meets_the_batch_and_never_falls(a, b):
    fixed, each = compute.line((32, 8), (a, b))
    assert fixed + 32 * each == pytest.approx(a)
    assert each >= 0
    assert fixed >= -1e-12


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=100 if IS_FULL else 20)
@given(
    st.sampled_from(["shared", "buffer", "object", "null"]),
    st.sampled_from(["none", "fixed_workers"]),
    st.sampled_from(["sync_ps", "allreduce"]),
    st.integers(2, 300),
    st.floats(1e3, 1e9),
)
def test_exchanges_of_a_node(name, collective, reproducible, mode, ranks, n_bytes):
    """They take time, more so with more bytes; and moving nothing is the fastest of all."""
    found = machine.read(name)
    server = "dedicated" if mode == "sync_ps" else None
    asked = way(mode=mode, server=server, collective=collective, reproducible=reproducible, ranks=ranks)
    node = exchange.Node(found, ranks)
    seconds = exchange.local_s(node, asked, n_bytes)
    assert 0 < seconds < exchange.local_s(node, asked, 2 * n_bytes) <= 2.001 * seconds
    if collective == "object" and reproducible == "fixed_workers":
        assert seconds > exchange.local_s(node, replace(asked, collective="buffer"), n_bytes)


@given(st.integers(1, 64), st.integers(2, 64), st.floats(1e3, 1e9), st.sampled_from(["1", "10", "100"]))
def test_links_bound_the_seconds_of_an_exchange(nodes, per_node, n_bytes, name):
    link = machine.link(name)
    seconds = {}
    for label, asked in {
        "hierarchical": {"collective": "hierarchical"},
        "allreduce": {"collective": "buffer"},
        "server": {"collective": "buffer", "mode": "sync_ps", "server": "colocated", "reproducible": "fixed_workers"},
        "servers": {"collective": "buffer", "mode": "sync_ps", "server": "colocated", "reproducible": "fixed_workers",
                    "n_servers": nodes},
    }.items():  # fmt: skip
        seconds[label] = exchange.between_s(way(ranks=nodes * per_node, nodes=nodes, **asked), n_bytes, link)
    if nodes == 1:
        assert not any(seconds.values())
        return
    assert min(seconds.values()) >= link.latency_us.value * 1e-6
    least = n_bytes * (nodes - 1) / nodes / (link.gbit.value * 1e9 / 8)
    assert seconds["hierarchical"] > least
    assert seconds["server"] > (nodes - 1) * per_node * least * nodes / (nodes - 1) * 0.99  # all gradients arrive
    assert seconds["servers"] <= seconds["server"]


def test_knights_landing_of_others():
    found = published.woo()
    assert sum(each.calibrates for each in found) == 2
    for each in found:
        if each.calibrates:
            assert abs(each.error) < 0.02, each  # or it would not be what the profile was chosen by
    (bcast,) = [each for each in found if each.what == "Bcast, MCDRAM"]
    assert abs(bcast.error) < 0.3


ROWS = [Exchange("allreduce shared", ranks, n, ranks * n * 1e-9) for ranks in (2, 4, 16) for n in (1000, 10_000, 10**6)]


@given(st.integers(2, 64), st.integers(1000, 10**7))
def test_lines_between_what_was_measured_are_straight(ranks, n_bytes):
    assert measured.interpolated(ROWS, way(ranks=ranks), n_bytes) == pytest.approx(
        ranks * n_bytes * 1e-9, rel=1e-3, abs=1.1e-6
    )


def test_exchange_that_was_not_measured_is_none():
    assert measured.interpolated(ROWS, way(collective="object"), 1000) is None
    assert measured.interpolated(ROWS, way(ranks=1), 1000) is None
    assert measured.interpolated([], way(), 1000) is None


def test_epoch_is_its_steps():
    found = predicted(job(), way(ranks=4))
    assert found.steps == 47  # 46 of 128 samples, and one of the 112 that are left
    assert found.epoch_s == pytest.approx(found.compute_s + found.wait_s + found.exchange_s + found.network_s)
    assert found.network_s == 0
    assert not found.measured
    alone = predicted(job(work=work(n_train=46 * 128)), way(ranks=4))
    assert alone.steps == 46
    assert 46 * job().compute_s(way(ranks=4), 32) == pytest.approx(alone.compute_s)


def test_ranks_that_share_cores_take_turns():
    one, two = (job().compute_s(way(ranks=n), 32) for n in (68, 136))
    assert two == pytest.approx(2 * one)
    crowded = work(step_s=(2.4 * 8.1e-3, 0.0), n_ranks=4)  # twice the turns, and a fifth more
    assert job(crowded=crowded).compute_s(way(ranks=136), 32) == pytest.approx(2.4 * one)
    assert job(crowded=crowded).compute_s(way(ranks=68), 32) == pytest.approx(one)


def test_backward_hides_what_links_carry():
    slow = predicted(job(), way(ranks=128, nodes=2, collective="hierarchical", link="1"))
    fast = predicted(job(), way(ranks=128, nodes=2, collective="hierarchical", link="100"))
    bare = exchange.between_s(slow.way, work().param_bytes, machine.link("1"))
    assert 0 < slow.network_s < slow.steps * bare
    assert fast.network_s < slow.network_s


def test_server_on_each_node():
    """More servers than a node has ranks; and several are faster than one."""
    server = {"mode": "sync_ps", "server": "colocated", "collective": "buffer", "reproducible": "fixed_workers"}
    several, one = (predicted(job(), way(ranks=4, nodes=4, n_servers=k, link="1", **server)) for k in (4, 1))
    assert several.epoch_s < one.epoch_s


def test_memory_too_much_is_noted():
    found = predicted(job(work=work(n_params=100_000_000)), way(ranks=64))
    assert any("GiB" in note for note in found.notes)
    assert not predicted(job(), way(ranks=64)).notes


def test_mpi_that_is_another_is_noted():
    mine = msgspec.structs.replace(machine.read("a64fx"), mpi="MPI 2")
    (note,) = predicted(job(machine=mine, here=True), way()).notes
    assert "MPI 2" in note
    assert "MPI 1" in note


def test_startup_is_the_interpreters():
    assert job(here=True).startup_s == 3.0
    assert job().startup_s == pytest.approx(3.0 / job().machine.scalar.value)


def test_batch_of_another_size():
    whole = job(work=resized(work(), 64))
    assert compute.step_s(whole.work, 64, CORE) == pytest.approx(compute.step_s(work(), 64, CORE))


def test_order_of_pairs():
    def check(name, predicted, took, ranks=2):
        return Check(f"net, batch 32, {name}", ranks, predicted, took)

    found = [check("a", 1.0, 1.0), check("b", 2.0, 3.0), check("c", 0.5, 1.05), check("b", 1.0, 5.0, ranks=4)]
    assert view.order(found) == (2, 2)  # a < b and c < b; a and c are too near; the last has other ranks
    assert view.order([check("a", 2.0, 1.0), check("b", 1.0, 2.0)]) == (0, 1)
    links = [check("a, 1 Gb/s", 2.0, 2.0), check("b, 10 Gb/s", 1.0, 1.0), check("b, 1 Gb/s", 1.0, 1.0)]
    assert view.order(links) == (1, 1)


def test_servers_are_ranks():
    assert way(mode="sync_ps", server="dedicated", ranks=1).n_workers == 1
    assert way(mode="sync_ps", server="dedicated", ranks=3, n_servers=2).n_workers == 2
    with pytest.raises(UserError, match="servers must be at most 2"):
        way(mode="sync_ps", server="dedicated", ranks=3, n_servers=3)


def test_bytes_that_are_more_never_take_less():
    rows = [Exchange("a", 2, n, s) for n, s in ((100, 1e-4), (1000, 3e-4), (10_000, 1e-6))]
    assert [each.seconds for each in measure._rising(rows)] == [1e-4, 3e-4, 3e-4]
