"""Tables of a comparison: the accuracy to reach, a row for every point, and what failed."""

import csv
from argparse import Namespace

import pytest

from psframe.compare import tables as tables_
from psframe.compare.grid import Point

FIRST, SECOND = Point("a/one.yaml", ("sync=easgd",), 2), Point("a/two.yaml", (), 3)


def records(*accuracies, epoch_s=2.0):
    keys = {"samples_used": 20, "wait_s": 0, "staleness_p50": 1, "staleness_p99": 4, "dropped": 0, "begun_at": 0}
    keys |= {"n_ranks": 3, "n_workers": 2, "global_batch": 64, "bytes_moved": 3e6, "bytes_sent": 1e6}
    return [{"epoch_s": epoch_s, "samples_per_s": 20 / epoch_s, "accuracy": a, **keys} for a in accuracies]


@pytest.fixture
def tables(tmp_path):
    """Return the rows and the page of what is written after a run."""

    def written(curves, failed=None, target=None, repeat=1):
        tables_.write(Namespace(target=target, repeat=repeat), curves, failed or {}, tmp_path, last=False)
        with (tmp_path / "compare.csv").open() as file:
            return list(csv.DictReader(file)), (tmp_path / "compare.md").read_text()

    return written


@pytest.mark.parametrize(
    ("curves", "target", "said", "reached"),
    [
        ({FIRST: [records(0.3, 0.9, 0.8)], SECOND: [records(0.77, 0.99)]}, None, "78.00%", [4, 4]),
        ({FIRST: [records(0.3, 0.9)], SECOND: [records(0.89, 0.7)]}, None, "88.00%", [4, 2]),
        ({FIRST: [records(0.3, 0.9), records(0.5, 0.6)], SECOND: []}, None, "88.00%", [None]),
        ({FIRST: [], SECOND: [records(0.4, 0.5)]}, None, "48.00%", [4]),
        ({FIRST: [records(0.3, 0.9)], SECOND: [records(0.2, 0.2)]}, 0.25, "25.00%", [2, None]),
        ({FIRST: [records(0.3, 0.9)]}, 0.0, "0.00%", [2]),
    ],
)
def test_accuracy_to_reach_is_the_last_of_the_first_run_less_two_points(tables, curves, target, said, reached):
    rows, page = tables(curves, target=target)
    assert f"target accuracy {said};" in page
    assert [float(row["target_s"]) if row["target_s"] else None for row in rows] == reached


def test_tables_have_every_point_that_ran_and_all_that_failed(tables):
    curves = {FIRST: [records(0.5, epoch_s=s) for s in (1.0, 4.0, 2.0)], SECOND: []}
    rows, page = tables(curves, {FIRST: ["a link"], SECOND: ["first", "no memory"]}, repeat=4)
    assert [(row["run"], row["epoch_s"], row["low"], row["high"], row["n_runs"]) for row in rows] == [
        ("one sync=easgd", "2.0", "1.0", "4.0", "3")
    ]
    lines = page.splitlines()
    assert [line.split("|")[1].strip() for line in lines if line.startswith("|")] == [
        "run", "---", "one sync=easgd", "two"
    ]  # fmt: skip
    assert "failed: one sync=easgd, 2 ranks (1 of 4 runs): a link" in lines
    assert "failed: two, 3 ranks (2 of 4 runs): no memory" in lines


def test_tables_are_not_written_before_a_run_has_ended_well(tmp_path):
    tables_.write(Namespace(target=None, repeat=1), {FIRST: []}, {FIRST: ["why"]}, tmp_path, last=False)
    assert not list(tmp_path.iterdir())
