"""Grids of runs, as a user starts them, and what is made of their records."""

import csv
import signal
import subprocess
import time

import numpy as np
import pytest

from psframe.record import summary
from psframe.sync.tally import LONGEST, Tally, described, quantile
from tests.launcher import ROOT, installed
from tests.live import heed


def compare(*arguments, timeout_s=120, **keys):
    mpi = installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    command = [str(mpi.python), "-m", "psframe.compare", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, cwd=ROOT, **keys)


def test_a_grid_is_trained_and_tabled(config, tmp_path):
    out = tmp_path / "out"
    grid = ["--grid", "sync.mode=sync_ps,easgd", "--grid", "optimizer={lr: 0.05}", "--repeat", 2]
    ended = compare(config, *grid, "--ranks", "2,3", "--set", "train.epochs=1", "--target", 0.1, "--out", out)
    assert ended.returncode == 0, ended
    rows = list(csv.DictReader((out / "compare.csv").open()))
    assert [row["n_ranks"] for row in rows] == ["2", "2", "3", "3"]
    assert rows[3]["run"] == "tiny sync.mode=easgd optimizer={lr: 0.05}"
    for row in rows:
        assert float(row["low"]) <= float(row["epoch_s"]) <= float(row["high"])
        assert float(row["samples_per_s"]) > 0
        assert float(row["mb"]) > 0
        assert row["n_runs"] == "2"
    assert len(list((out / "runs").iterdir())) == 8
    table = (out / "compare.md").read_text().splitlines()
    assert len([line for line in table if line.startswith("|")]) == 2 + 4
    assert "s to target" in ended.stdout


def test_the_page_shows_every_run(config, tmp_path):
    out = tmp_path / "out"
    ended = compare(config, "--ranks", "1,2", "--out", out, "--set", "train.epochs=1")
    assert ended.returncode == 0, ended
    page = (out / "report.html").read_text()
    assert "2 runs" in page
    assert page.count("<svg") >= 4


def test_a_run_that_fails_is_a_row_that_says_why(config, tmp_path):
    grid = ["--grid", "sync={mode: sync_ps, backup_workers: 5},{mode: hogwild}"]
    ended = compare(config, *grid, "--ranks", 2, "--set", "train.epochs=1", "--out", tmp_path / "out")
    assert ended.returncode == 1
    assert "failed: sync.backup_workers must be fewer than the workers, got 5 of 1" in ended.stdout
    assert "hogwild" in (tmp_path / "out" / "compare.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere.yaml"], ["'nowhere.yaml'", "check the path"]),
        (["configs/quickstart.yaml", "configs/../configs/quickstart.yaml"], ["differ in their files' names"]),
        (["configs/quickstart.yaml", "--grid", "sync.mode"], ["--grid must be KEY=VALUE,VALUE", "'sync.mode'"]),
        (["configs/quickstart.yaml", "--ranks", "2,none"], ["--ranks", "'2,none'"]),
        (["configs/quickstart.yaml", "--ranks", "0"], ["--ranks", "'0'"]),
        (["configs/quickstart.yaml", "--repeat", "0"], ["--repeat must be 1 or more"]),
        (["configs/quickstart.yaml", "--out", "configs"], ["--out must be a new or empty folder", "'configs'"]),
        (["configs/quickstart.yaml", "--out", "/proc/1/no"], ["--out must be a folder that can be written"]),
        (
            ["configs/quickstart.yaml", "--mpirun", "no-such-launcher", "--out", "{tmp}"],
            ["--mpirun must be a launcher"],
        ),
        ([], ["the command must be"]),
    ],
)
def test_mistakes_are_told_in_one_sentence(arguments, words, tmp_path):
    ended = compare(*(a.format(tmp=tmp_path) for a in arguments))
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    for word in words:
        assert word in ended.stderr


def test_under_mpirun_it_refuses(config):
    mpi = installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    command = mpi.command(2, ["-m", "psframe.compare", config])
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert ended.returncode == 2
    assert "starts mpirun itself" in ended.stderr


def test_what_was_broken_off_goes_on(config, tmp_path):
    out = tmp_path / "out"
    grid = [config, "--ranks", "2", "--grid", "train.batch_size=4,8", "--set", "train.epochs=2", "--out", out]
    assert compare(*grid).returncode == 0
    first, second = sorted(out.glob("runs/*/*/metrics.jsonl"))
    kept = first.read_text()
    lines = second.read_text().splitlines(keepends=True)
    second.write_text(lines[0])  # it was broken off in its second epoch
    ended = compare(*grid)
    assert ended.returncode == 0, ended
    assert "[1/2] tiny train.batch_size=4, 2 ranks (done before)" in ended.stdout
    assert "[2/2] tiny train.batch_size=8, 2 ranks\n" in ended.stdout
    first, second = sorted(out.glob("runs/*/*/metrics.jsonl"))
    assert first.read_text() == kept
    assert len(second.read_text().splitlines()) == 2
    assert len(list(csv.DictReader((out / "compare.csv").open()))) == 2
    other = compare(*grid, "--repeat", 2)
    assert (other.returncode, "begun with another" in other.stderr) == (2, True), other


def test_the_time_left_is_told(config, tmp_path):
    grid = ["--grid", "train.batch_size=4,8,16", "--ranks", 1, "--set", "train.epochs=1", "--out", tmp_path / "out"]
    told = [line for line in compare(config, *grid).stdout.splitlines() if line.startswith("[")]
    assert [" left" in line for line in told] == [False, True, True]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_the_runs_too(config, tmp_path, number):
    mpi = installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    command = [str(mpi.python), "-m", "psframe.compare", config, "--ranks", "2", "--set", "train.epochs=100000"]
    heeds = {"preexec_fn": heed}
    command += ["--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, **heeds)
    runs = tmp_path / "out" / "runs"
    end = time.monotonic() + 60
    while not list(runs.glob("*/*/metrics.jsonl")):
        assert time.monotonic() < end, "it did not begin to train"
        time.sleep(0.1)
    process.send_signal(number)
    assert process.wait(timeout=30) == 128 + number
    (metrics,) = runs.glob("*/*/metrics.jsonl")
    time.sleep(1)
    size = metrics.stat().st_size
    time.sleep(0.5)
    assert metrics.stat().st_size == size, "ranks train on"


def records(*accuracies, epoch_s=2.0):
    keys = {"samples_per_s": 10, "wait_s": 0, "staleness_p50": 1, "staleness_p99": 4, "dropped": 0, "n_ranks": 3}
    return [{"epoch_s": epoch_s, "accuracy": a, "bytes_moved": 3e6, "bytes_sent": 1e6, **keys} for a in accuracies]


def test_seconds_to_a_target_are_those_of_whole_epochs():
    assert summary.reached_s(records(0.5, 0.8, 0.7), 0.8) == 4
    assert summary.reached_s(records(0.5, 0.8, 0.7), 0.5) == 2
    assert summary.reached_s(records(0.5, 0.8, 0.7), 0.81) is None


def test_several_runs_are_their_medians():
    rows = [summary.row(records(0.5, 0.9, epoch_s=s), 0.9) for s in (1, 5, 2)]
    found = summary.middle(rows)
    assert (found["epoch_s"], found["low"], found["high"], found["target_s"], found["mb"]) == (2, 1, 5, 4, 3)
    rows.append(summary.row(records(0.5, epoch_s=2), 0.9))
    assert summary.middle(rows)["target_s"] is None, "one that did not get there has no seconds"


def test_a_tally_counts_and_forgets():
    tally = Tally()
    for clocks in (0, 0, 0, 2, LONGEST + 5):
        tally.saw(clocks)
    tally.pulls, tally.pushes, tally.dropped = 5, 4, 1
    found = described(tally.counts() + tally.counts(), 9)
    assert found["staleness"] == {"0": 6, "2": 2, str(LONGEST): 2}
    assert (found["pulls"], found["pushes"], found["dropped"]) == (10, 8, 2)
    assert found["samples_used"] == 9
    assert (found["staleness_p50"], found["staleness_p99"]) == (0, LONGEST)
    tally.clear()
    assert described(tally.counts(), 9)["staleness_p50"] is None


@pytest.mark.parametrize(("counts", "share", "value"), [([1, 1], 0.5, 0), ([1, 1], 0.51, 1), ([0, 0, 7], 0.01, 2)])
def test_a_quantile_is_the_least_value_that_covers_the_share(counts, share, value):
    assert quantile(np.array(counts), share) == value
