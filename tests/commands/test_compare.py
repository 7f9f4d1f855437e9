"""Grids of runs, as a user starts them, and what is made of their records."""

import csv
import shutil
import signal
import subprocess
import time

import pytest

from psframe.compare import tables
from psframe.compare.grid import Point
from psframe.record import summary
from tests.helpers import forked
from tests.helpers.launcher import ROOT, installed
from tests.helpers.live import ends, heed
from tests.helpers.thinned import thinned


def compare(*arguments, timeout_s=120, **keys):
    mpi = installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    return forked.command("psframe.compare", *arguments, timeout_s=timeout_s, python=mpi.python, **keys)


@pytest.mark.full
def test_grid_is_trained_and_tabled(config, tmp_path):
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
    assert [row["n_workers"] for row in rows] == ["1", "2", "2", "3"]
    assert [row["global_batch"] for row in rows] == [str(8 * int(row["n_workers"])) for row in rows]
    assert "at 2 ranks runs differ in workers (1, 2)" in ended.stdout
    assert "at 3 ranks runs differ in workers (2, 3)" in (out / "compare.md").read_text()


@pytest.mark.full
def test_page_shows_every_run(config, tmp_path):
    out = tmp_path / "out"
    ended = compare(config, "--ranks", "1,2", "--out", out, "--set", "train.epochs=1")
    assert ended.returncode == 0, ended
    page = (out / "report.html").read_text()
    assert "2 runs" in page
    assert page.count("<svg") >= 4


def test_run_that_fails_is_a_row_that_says_why(config, tmp_path):
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
        (["configs/quickstart.yaml", "--ranks", ""], ["--ranks must be whole numbers", "''"]),
        (["configs/quickstart.yaml", "--repeat", "0"], ["--repeat must be 1 or more"]),
        (["configs/quickstart.yaml", "--out", "configs"], ["--out must be a new or empty folder", "'configs'"]),
        (["configs/quickstart.yaml", "--out", "/proc/1/no"], ["--out must be a folder that can be written"]),
        (
            ["configs/quickstart.yaml", "--mpirun", "no-such-launcher", "--out", "{tmp}"],
            ["--mpirun must be a launcher"],
        ),
        (["configs/quickstart.yaml", "--machine", "knl-7250-ddr"], ["--machine must go with --simulate"]),
        (["configs/quickstart.yaml", "--nodes", "0"], ["--nodes must go with --simulate"]),
        (["configs/quickstart.yaml", "--simulate", "--out", "{tmp}"], ["--machine must name a profile"]),
        (
            ["configs/quickstart.yaml", "--simulate", "--machine", "knl-7250-ddr", "--slow", "9:1", "--out", "{tmp}"],
            ["--slow must name one of 4 rank(s)"],
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


def test_compare_refuses_under_mpirun(config):
    mpi = installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    command = mpi.command(2, ["-m", "psframe.compare", config])
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert ended.returncode == 2
    assert "starts mpirun itself" in ended.stderr


@pytest.mark.full
def test_comparison_that_was_broken_off_goes_on(config, tmp_path):
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


@pytest.mark.full
def test_time_left_is_told(config, tmp_path):
    grid = ["--grid", "train.batch_size=4,8,16", "--ranks", 1, "--set", "train.epochs=1", "--out", tmp_path / "out"]
    told = [line for line in compare(config, *grid).stdout.splitlines() if line.startswith("[")]
    assert [" left" in line for line in told] == [False, True, True]


@pytest.mark.parametrize("number", thinned([signal.SIGINT, signal.SIGTERM], (0,)))
def test_ctrl_c_ends_the_runs_too(config, tmp_path, number):
    mpi = installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    command = [str(mpi.python), "-m", "psframe.compare", config, "--ranks", "2", "--set", "train.epochs=100000"]
    heeds = {"preexec_fn": heed}
    command += ["--out", str(tmp_path / "out")]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, **heeds)
    runs = tmp_path / "out" / "runs"
    end = time.monotonic() + 300
    while not list(runs.glob("*/*/metrics.jsonl")):
        assert time.monotonic() < end, "it did not begin to train"
        time.sleep(0.1)
    process.send_signal(number)
    ends(process, config)  # it, and the ranks
    assert process.returncode == 128 + number


def records(*accuracies, epoch_s=2.0, **changes):
    keys = {"samples_used": 20, "wait_s": 0, "staleness_p50": 1, "staleness_p99": 4, "dropped": 0, "begun_at": 0}
    keys |= {"n_ranks": 3, "n_workers": 2, "global_batch": 64, "bytes_moved": 3e6, "bytes_sent": 1e6, **changes}
    return [{"epoch_s": epoch_s, "samples_per_s": 20 / epoch_s, "accuracy": a, **keys} for a in accuracies]


def test_seconds_to_a_target_are_those_of_whole_epochs():
    assert summary.reached_s(records(0.5, 0.8, 0.7), 0.8) == 4
    assert summary.reached_s(records(0.5, 0.8, 0.7), 0.5) == 2
    assert summary.reached_s(records(0.5, 0.8, 0.7), 0.81) is None


def test_row_of_several_runs_has_their_medians():
    rows = [summary.row(records(0.5, 0.9, epoch_s=s), 0.9) for s in (1, 5, 2)]
    found = summary.middle(rows)
    assert (found["epoch_s"], found["low"], found["high"], found["target_s"], found["mb"]) == (2, 1, 5, 4, 3)
    rows.append(summary.row(records(0.5, epoch_s=2), 0.9))
    assert summary.middle(rows)["target_s"] is None, "one that did not get there has no seconds"


def test_samples_and_seconds_of_a_row_are_of_one_epoch():
    """Medians of rates and of seconds are of different epochs: 4,000 samples were 1.07 s at 4,422 samples/s."""
    uneven = [summary.row([records(0.5, epoch_s=s)[0] for s in seconds], 0.9) for seconds in ((1, 3), (1, 8), (2, 4))]
    assert uneven[0]["samples_per_s"] == 20 / uneven[0]["epoch_s"] == 10
    for n_runs in (1, 2, 3):
        found = summary.middle(uneven[:n_runs])
        assert found["samples_per_s"] * found["epoch_s"] == pytest.approx(20)


def test_epoch_that_was_continued_within_is_no_whole_one():
    part, whole = records(0.5, epoch_s=0.1, begun_at=15, samples_used=5), records(0.6, 0.7, 0.7, epoch_s=2)
    found = summary.row(part + whole, 0.6)
    assert (found["epoch_s"], found["samples_per_s"], found["target_s"]) == (2, 10, 2.1)
    assert summary.row(part, 0.9)["samples_per_s"] == pytest.approx(50), "where there is no whole one it counts"


def test_figures_told_after_a_run_stand_in_the_table():
    found = summary.row([records(0.5, epoch_s=s)[0] for s in (1, 4, 0.5)], 0.9)
    head, row = summary.cells([("tiny", summary.middle([found]))], [], repeated=False)
    cells = dict(zip(head, row, strict=True))
    assert summary.told(found) == "1.00 s an epoch, 20 samples/s, accuracy 50.00%"
    assert (cells["s an epoch"], cells["samples/s"], cells["accuracy"]) == ("1.00", "20", "50.00%")


@pytest.mark.parametrize(
    ("value", "shown"), [(123.456, "123.46"), (6.691, "6.69"), (0.4312, "0.431"), (0.001234, "0.00123"), (0, "0.00")]
)
def test_seconds_have_three_digits_that_count(value, shown):
    assert summary.cell({"epoch_s": value}, "epoch_s") == shown


def test_table_has_workers_and_batches_and_what_failed():
    rows = [
        (name, summary.middle([summary.row(records(0.5, epoch_s=s, **of), 0.9) for s in (1, 2, 4)]))
        for name, of in (("served", {}), ("own", {"n_workers": 3, "global_batch": 96, "staleness_p50": None}))
    ]
    head, served, own, broken = summary.cells(rows, [("broken", 3)], repeated=True)
    assert {len(line) for line in (head, served, own, broken)} == {len(head)}
    at = {heading: place for place, heading in enumerate(head)}
    shown = ("ranks", "workers", "global batch", "s an epoch", "fastest", "slowest", "runs")
    assert [served[at[heading]] for heading in shown] == ["3", "2", "64", "2.00", "1.00", "4.00", "3"]
    assert [own[at[heading]] for heading in ("workers", "global batch", "stale p50")] == ["3", "96", "-"]
    assert [broken[at[heading]] for heading in ("run", "ranks", "workers", "s an epoch")] == [
        "broken",
        "3",
        "",
        "failed",
    ]


def sizes(*rows):
    return [dict(zip(summary.SHARED, row, strict=True)) for row in rows]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (sizes((2, 2, 32), (4, 4, 64), (2, 2, 32)), ""),
        (sizes((2, 2, 16), (2, 2, 32), (4, 4, 64)), "at 2 ranks runs differ in global batch (16, 32)"),
        (sizes((4, 4, 64), (4, 3, 64)), "at 4 ranks runs differ in workers (3, 4); a rank that only serves, "),
        (
            sizes((2, 1, 16), (2, 2, 32), (1, 1, 16)),
            "at 2 ranks runs differ in workers (1, 2) and global batch (16, 32);",
        ),
    ],
)
def test_note_says_where_equal_ranks_are_not_equal_workers(rows, said):
    found = summary.unequal(rows)
    assert found.startswith(said)
    assert bool(found) == bool(said)
    assert (found in summary.notes(rows, 0.9)) == bool(said)


def test_run_that_failed_once_is_no_row_that_failed():
    point = Point("configs/tiny.yaml", ("sync.mode=easgd",), 1)
    (line,) = tables.failures({point: ["first", "a dead rank"]}, 3)
    assert line == "failed: tiny sync.mode=easgd, 1 rank (2 of 3 runs): a dead rank"
    assert list(tables.failures({point: ["why"]}, 1)) == ["failed: tiny sync.mode=easgd, 1 rank: why"]


@pytest.mark.full
def test_link_in_folder_of_comparison_ends_it_with_a_sentence(tmp_path, config):
    arguments = ["--ranks", "1", "--set", "train.epochs=1", "--out", tmp_path / "out"]
    (tmp_path / "victim").write_text("kept")
    (tmp_path / "out" / "runs").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out" / "runs" / "001").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "out" / "grid.json").symlink_to(tmp_path / "victim")
    ended = compare(config, *arguments)
    assert (ended.returncode, ended.stderr.count("psframe:")) == (2, 1), ended.stderr
    (tmp_path / "out" / "runs" / "001").rename(tmp_path / "001")
    shutil.rmtree(tmp_path / "out")
    assert compare(config, *arguments).returncode == 0
    shutil.rmtree(tmp_path / "out" / "runs" / "001")
    (tmp_path / "001").rename(tmp_path / "out" / "runs" / "001")
    (tmp_path / "out" / "compare.md").unlink()
    (tmp_path / "out" / "compare.md").symlink_to(tmp_path / "victim")
    ended = compare(config, *arguments)
    assert (ended.returncode, ended.stderr.count("psframe:")) == (2, 1), ended.stderr
    assert "it is a link" in ended.stderr
    assert (tmp_path / "victim").read_text() == "kept"
    assert not list((tmp_path / "elsewhere").iterdir())
