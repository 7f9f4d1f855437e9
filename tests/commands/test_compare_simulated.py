"""Modes compared on virtual ranks: one table and one figure, which say so, and up to how many ranks pay."""

import csv
import re
import shutil

import pytest

from psframe.record import summary
from tests.helpers import forked

VIRTUALLY = ("--simulate", "--machine", "knl-7250-mcdram", "--step-s", "0.01")


def compare(*arguments):
    return forked.command("psframe.compare", *arguments)


def test_modes_are_compared_on_virtual_ranks(config, tmp_path):
    """Two comparisons are the same, and one that was broken off goes on."""
    grid = [*VIRTUALLY, "--grid", "sync.mode=allreduce,async_ps", "--ranks", "2,5", "--target", 0.1]
    grid += ["--repeat", 2, "--set", "train.epochs=2"]
    out, other = tmp_path / "out", tmp_path / "other"
    ended = compare(config, *grid, "--out", out)
    assert ended.returncode == 0, ended
    rows = list(csv.DictReader((out / "compare.csv").open()))
    assert [(row["run"], row["n_ranks"], row["n_runs"]) for row in rows] == [
        (f"tiny sync.mode={mode}", n, "2") for n in ("2", "5") for mode in ("allreduce", "async_ps")
    ]
    assert all(float(row["low"]) < float(row["high"]) for row in rows), "repeats must have steps of their own"
    said = (out / "compare.md").read_text()
    assert "simulated on knl-7250-mcdram: seconds are virtual\n" in said
    assert "tiny sync.mode=allreduce reaches the target after " in said
    page = (out / "report.html").read_text()
    assert "5 virtual ranks" in page
    assert "Seconds to an accuracy of " in page
    assert "seconds are those of a profile (knl-7250-mcdram)" in page
    shutil.rmtree(out / "runs" / "003")
    again = compare(config, *grid, "--out", out)
    assert ["(done before)" in line for line in again.stdout.splitlines() if line[:1] == "["].count(False) == 1
    assert compare(config, *grid, "--out", other).returncode == 0
    assert list(csv.DictReader((other / "compare.csv").open())) == rows
    assert list(csv.DictReader((out / "compare.csv").open())) == rows
    refused = compare(config, *grid, "--seed", 1, "--out", out)
    assert "begun with another" in refused.stderr


def test_run_that_a_callback_has_ended_is_not_trained_again(config, tmp_path):
    stop = "train.stop={metric: test_loss, reach: 1000.0, patience: 9}"
    grid = [config, *VIRTUALLY, "--ranks", 2, "--set", "train.epochs=5", "--set", stop, "--out", tmp_path / "out"]
    assert "[1/1] tiny, 2 ranks\n" in compare(*grid).stdout
    again = compare(*grid)
    assert "[1/1] tiny, 2 ranks (done before)\n" in again.stdout
    (run,) = (tmp_path / "out" / "runs" / "001").iterdir()
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 1


def test_mode_that_diverges_does_not_set_what_others_reach(config, tmp_path):
    grid = [*VIRTUALLY, "--grid", "optimizer.lr=0.05,1.0e-30", "--ranks", "2,4", "--set", "train.epochs=6"]
    assert compare(config, *grid, "--out", tmp_path / "out").returncode == 0
    rows = list(csv.DictReader((tmp_path / "out" / "compare.csv").open()))
    best = max(float(row["accuracy"]) for row in rows)
    page = (tmp_path / "out" / "report.html").read_text()
    (shown,) = set(re.findall(r"Seconds to an accuracy of (\d+)% against ranks", page))
    assert int(shown) >= int(100 * best) - 2
    assert f"seconds to {shown}% accuracy" in page


def test_step_is_timed_once_for_all_modes(config, tmp_path):
    """Also for one that psframe.predict does not know."""
    grid = ["--simulate", "--machine", "knl-7250-mcdram", "--grid", "sync.mode=hybrid,allreduce", "--ranks", "2,4"]
    ended = compare(config, *grid, "--set", "train.epochs=1", "--out", tmp_path / "out")
    assert ended.returncode == 0, ended
    assert ended.stderr.count("measuring a step of ") == 1
    assert len(list(csv.DictReader((tmp_path / "out" / "compare.csv").open()))) == 4


def test_point_that_cannot_be_simulated_is_a_row_that_failed(config, tmp_path):
    grid = [*VIRTUALLY, "--grid", "sync.mode=hogwild,allreduce"]
    ended = compare(config, *grid, "--ranks", 4, "--nodes", 2, "--set", "train.epochs=1", "--out", tmp_path / "out")
    assert ended.returncode == 1, ended
    assert "failed: tiny sync.mode=hogwild, 4 ranks: " in ended.stdout
    assert "tiny sync.mode=allreduce" in (tmp_path / "out" / "compare.csv").read_text()


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        ([9.0, 5.0, 6.0], "9.00 s on 2, 5.00 s on 4, 6.00 s on 8 ranks: more ranks pay up to 4"),
        ([9.0, 5.0, 4.0], "9.00 s on 2, 5.00 s on 4, 4.00 s on 8 ranks: more ranks still pay at 8"),
        ([9.0, 5.0, None], "9.00 s on 2, 5.00 s on 4 ranks, and does not on 8: more ranks pay up to 4"),
        ([2.0, 5.0, 2.0], "2.00 s on 2, 5.00 s on 4, 2.00 s on 8 ranks: more ranks pay up to 2"),
    ],
)
def test_note_says_up_to_how_many_ranks_pay(seconds, told):
    rows = [("a", {"n_ranks": n, "target_s": s}) for n, s in zip((2, 4, 8), seconds, strict=True)]
    assert summary.paying([*rows, ("b", rows[0][1])]) == [f"a reaches the target after {told}"]
    never = [("c", {"n_ranks": n, "target_s": None}) for n in (2, 1024)]
    assert summary.paying(never) == ["c does not reach the target on 2, 1,024 ranks"]
