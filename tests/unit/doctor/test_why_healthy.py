"""Causes that make a run slow, from its records: what stands out is told, and ordinary records accuse nobody."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from psframe.doctor.why.__main__ import main
from psframe.doctor.why.healthy import of_run
from psframe.errors import UserError
from psframe.record import metrics
from tests.helpers import incidents
from tests.helpers.configs import TINY
from tests.helpers.launcher import train

RANDOM = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
RECORD = {  # an epoch in which nothing stands out
    "epoch": 1,
    "epoch_s": 4.0,
    "data_s": 0.2,
    "compute_s": 2.4,
    "exchange_s": 0.6,
    "update_s": 0.2,
    "wait_s": 0.6,
    "checkpoint_s": 0.1,
    "skipped": [],
    "repaired": [],
    "late": {},
    "lost": [],
    "placed": {"parameters": 1.0},
    "batch_size": 16,
}
USAGE = {"epoch": 1, "rank": 0, "t_s": 1.0, "cpu_percent": 99.0, "rss_bytes": 1 << 30, "threads": 3}
PAGES = {"asked": "default", "got": "default", "pages": {"0": 9000, "untouched": 100}}


def told(folder: Path, *changes, usage=(), ranks=()):
    """Return the causes in records that are as usual but for ``changes``, epoch by epoch."""
    records = [{**RECORD, "epoch": number, **change} for number, change in enumerate(changes, 1)]
    metrics.append(folder, "metrics.jsonl", records)
    if usage:
        metrics.append(folder, "usage.jsonl", [{**USAGE, **sample} for sample in usage])
    if ranks:
        (folder / "placement.json").write_text(json.dumps({"hbw_nodes": [], "ranks": list(ranks)}))
    return of_run(folder)


def sentences(*given, **named):
    return [cause.sentence for cause in told(*given, **named)]


def test_records_are_asked_where_a_dump_shows_nothing(tmp_path, capsys):
    told(tmp_path, {}, {"placed": {"parameters": 0.25}})
    (file,) = incidents.write(tmp_path, incidents.asked([incidents.at_gate(0, 0.01, n_events_later=410)]))
    assert main([str(tmp_path)]) == 0
    assert "1. Only 25% of the pages of parameters" in capsys.readouterr().out
    assert main([str(file)]) == 0
    assert capsys.readouterr().out.endswith("\n\nno cause found\n")


@pytest.mark.parametrize(
    ("compute", "exchange", "wait", "told_of"),
    [(0.6, 2.0, 1.3, True), (0.6, 1.2, 2.0, False), (0.6, 1.3, 1.4, False), (1.4, 1.6, 0.9, False)],
)
def test_short_steps_are_told_unless_ranks_wait_longer_for_one_another(tmp_path, compute, exchange, wait, told_of):
    record = {"compute_s": compute, "exchange_s": exchange, "update_s": 0.0, "wait_s": wait}
    assert [sentence[:12] for sentence in sentences(tmp_path, record, record)] == ["Exchange and"] * told_of


def test_updates_of_a_server_beside_its_workers_are_not_theirs(tmp_path):
    record = {"compute_s": 3.2, "exchange_s": 0.3, "update_s": 1.8, "wait_s": 0.4, "server": "dedicated"}
    assert not sentences(tmp_path, *[record | {"sync_mode": "async_ps"}] * 2)
    (tmp_path / "2").mkdir()
    assert sentences(tmp_path / "2", *[record | {"sync_mode": "sync_ps"}] * 2)


def test_pages_of_which_the_kernel_does_not_tell_are_not_misplaced(tmp_path):
    unknown = {"placed": {"parameters": 0.0}, "pages": {"parameters": {"denied": 900}}}
    assert not told(tmp_path, {}, unknown)
    (tmp_path / "2").mkdir()
    assert told(tmp_path / "2", {}, unknown | {"pages": {"parameters": {"0": 900}}})


def test_ordinary_records_accuse_nobody(tmp_path, capsys):
    usage = [{"rank": n % 2, "rss_bytes": (1 << 30) + n} for n in range(300)]
    ranks = [{"rank": n, "numa_node": 0, "roles": {"activations": PAGES, "gradients": PAGES}} for n in (0, 1)]
    assert not told(tmp_path, {}, {}, {}, usage=usage, ranks=ranks)
    assert main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path}: no incident\n\nno cause found\n"


@RANDOM
@given(st.data())
def test_shares_below_their_limits_accuse_nobody(tmp_path_factory, data):
    def share(most):
        return data.draw(st.floats(0, most))

    changes = []
    for _ in range(data.draw(st.integers(1, 4))):
        seconds = data.draw(st.floats(0.001, 1e4))
        parts = {
            "checkpoint_s": 0.19,
            "data_s": 0.39,
            "exchange_s": 0.2,  # with the update less than MOVES
            "update_s": 0.19,
            "compute_s": 1.0,
            "wait_s": 1.0,
        }
        changes.append({key: share(most) * seconds for key, most in parts.items()} | {"epoch_s": seconds})
    late = 0.09 * sum(change["epoch_s"] for change in changes)
    changes[-1] |= {"late": {"1": share(1.0) * late}, "placed": {"data": 0.95 + share(0.05)}}
    assert not told(tmp_path_factory.mktemp("run"), *changes)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"checkpoint_s": 1.2}, "Checkpoints hold training up for 30% of an epoch."),
        ({"data_s": 2.0}, "Preparing batches takes 50% of an epoch."),
        ({"exchange_s": 2.0, "update_s": 0.4}, "Exchange and update take 60% of an epoch: 16 samples are few"),
    ],
)
def test_a_share_that_stands_out_is_told(tmp_path, change, words):
    (sentence,) = sentences(tmp_path, {}, change, change)
    assert sentence.startswith(words)


@pytest.mark.parametrize("change", [{"checkpoint_s": 3.0}, {"data_s": 3.0}, {"exchange_s": 3.0}])
def test_the_first_epoch_and_a_single_one_of_several_do_not_count(tmp_path, change):
    assert not told(tmp_path, change, {}, change, {})


def test_short_training_is_not_judged(tmp_path):
    short = {"epoch_s": 0.5, "checkpoint_s": 0.4, "data_s": 0.4, "exchange_s": 0.4}
    assert not told(tmp_path, short, short, short)


def test_an_exchange_in_which_ranks_wait_for_each_other_is_not_too_small_a_batch(tmp_path):
    assert not told(tmp_path, *[{"exchange_s": 2.4, "wait_s": 1.0}] * 3)


def test_a_late_rank_is_named(tmp_path):
    (sentence,) = sentences(tmp_path, {"late": {"1": 0.1, "3": 0.9}}, {"late": {"3": 0.9}})
    assert sentence == "The others waited for rank 3 for 1.8 s of 8.0 s."


def test_lost_ranks_and_dropped_steps_are_told(tmp_path):
    lost = [{"step": 12, "ranks": [2, 5]}]
    found = sentences(tmp_path, {"lost": lost, "skipped": [3, 4]}, {"skipped": [9]})
    assert found == [
        "Rank 2, 5 died in epoch 1, and the others went on without it.",
        "3 steps were dropped, as gradients were not finite.",
    ]


@pytest.mark.parametrize(("share", "n"), [(0.5, 1), (0.0, 1), (0.95, 0), (1.0, 0), (-1, 0)])
def test_misplaced_pages_are_told(tmp_path, share, n):
    found = sentences(tmp_path, {"placed": {"data": 0.1}}, {"placed": {"data": share}})
    assert found == [f"Only {share:.0%} of the pages of data are where the config asks for them."] * n


@pytest.mark.parametrize(
    ("change", "n"),
    [
        ({"pages": {"0": 900, "1": 9000}}, 1),
        ({"pages": {"0": 9000, "1": 3000}}, 0),
        ({"pages": {"0": 10, "1": 2000}}, 0),
        ({"pages": {"0": 10, "untouched": 90000}}, 0),
        ({"pages": {"0": 900, "1": 9000}, "asked": "bind:1"}, 0),
        ({}, 0),
    ],
)
def test_memory_on_a_far_node_is_told_of_its_rank(tmp_path, change, n):
    near = {"rank": 0, "numa_node": 1, "roles": {"activations": {**PAGES, "pages": {"1": 9000}}}}
    ranks = [near, {"rank": 3, "numa_node": 0, "roles": {"activations": {**PAGES, **change}}}]
    found = sentences(tmp_path, {}, ranks=ranks)
    assert found == ["91% of the activations of rank 3 lie on another NUMA node than node 0, which it runs on."] * n


def test_pages_without_a_node_of_the_rank_are_not_far(tmp_path):
    """A rank that is not bound runs anywhere."""
    far = {"activations": {**PAGES, "pages": {"1": 9000}}}
    assert not told(tmp_path, {}, ranks=[{"rank": 0, "numa_node": None, "roles": far}, {"rank": 1, "roles": far}])


def test_memory_that_grows_is_told_of_its_rank(tmp_path):
    usage = [{"rank": n % 2, "rss_bytes": (1 << 30) + (n % 2) * n * (8 << 20)} for n in range(400)]
    (sentence,) = sentences(tmp_path, {}, usage=usage)
    assert sentence.startswith("The memory of rank 1 grows: 2,632 MiB in the middle, 4,216 MiB at the end.")


@pytest.mark.parametrize(
    "sizes",
    [
        [n << 24 for n in range(59)],  # too few samples
        [(1 << 30) + min(n, 40) * (32 << 20) for n in range(200)],  # while it starts
        [(1 << 20) * (1 + n) for n in range(200)],  # less than 256 MiB
        [None] * 199 + [4 << 30],  # not known before
        [4 << 30] * 100 + [1 << 30] * 99 + [2 << 30],
    ],
)
def test_memory_that_does_not_grow_for_long_is_not_told(tmp_path, sizes):
    assert not told(tmp_path, {}, usage=[{"rss_bytes": size} for size in sizes])


def test_a_run_without_an_epoch_is_a_mistake(tmp_path):
    with pytest.raises(UserError, match="why must be given a run with an epoch or an incident, got none"):
        main([str(tmp_path)])


@pytest.mark.parametrize("n", [2, 3])
def test_a_real_run_accuses_nobody(tmp_path, capsys, mpich, n):
    (tmp_path / "c.yaml").write_text(TINY)
    ended = train(mpich, n, tmp_path / "c.yaml", f"record.dir={tmp_path / 'runs'}")
    assert ended.status == 0, ended.err
    (run,) = (tmp_path / "runs").iterdir()
    assert main([str(run), "--all"]) == 0
    assert capsys.readouterr().out == f"{run}: no incident\n\nno cause found\n"
