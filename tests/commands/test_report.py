"""The page of psframe.report, made of real runs and benches' files."""

import json
import subprocess
import sys

import pytest

from psframe.report import make, read, runs
from psframe.report.scale import Axis, place
from tests.helpers import launcher, report_files
from tests.helpers.configs import TINY
from tests.helpers.report_page import FIGURES, TABLES, report, rows_of, sound


def test_figures_and_tables_are_all_there(report_page):
    parsed = sound(report_page.read_text())
    for name in FIGURES:
        assert f"figure-{name}" in parsed.ids
    for name in TABLES:
        assert f"table-{name}" in parsed.ids
    assert "notices" not in parsed.ids


def test_papers_values_stand_beside_those_measured(report_page):
    text = report_page.read_text()
    assert rows_of(text, "woo-1")[0] == ["Bcast", "16", "545 %", "16", "67.11 MB", "200 %", "150–267 %"]
    assert rows_of(text, "woo-4")[2][:3] == ["AllReduce", "32", "102 %"]
    five = rows_of(text, "woo-5")
    assert five[3] == ["Bcast", "4 containers", "buffer", "2.231", "7.83", "0.1600", "0.144–0.192", "5.00"]
    assert ["Bcast", "4 containers, shared IPC", "shared", "–", "–"] in [row[:5] for row in five]
    assert rows_of(text, "lerat")[1] == ["alexnet", "SimpleBig", "processes", "11", "15.57", "11", "8.80", "0.80"]
    assert "failed: memory must fit" in text
    assert "horovod is not there" in text


def test_cluster_modes_stand_side_by_side(tmp_path):
    for mode in ("quadrant", "SNC-4"):
        report_files.collectives(tmp_path / mode, mode=mode)
    ended = report(tmp_path / "quadrant", tmp_path / "SNC-4", "--out", tmp_path / "r.html")
    assert (ended.returncode, ended.stderr) == (0, "")
    page = (tmp_path / "r.html").read_text()
    sound(page)
    assert rows_of(page, "woo-7")[0][:6] == ["Bcast", "2.398", "2.456", "68", "0.340", "0.340"]
    assert "4 containers, SNC-4" in page
    assert "A many-core CPU, 2 cores, SNC-4, Open MPI v5.0.11, ident: 5.0.11" in page


def test_tables_say_where_there_is_no_high_bandwidth_memory(tmp_path):
    report_files.collectives(tmp_path / "c", memories=("default",))
    assert report(tmp_path, "--out", tmp_path / "r.html").returncode == 0
    page = (tmp_path / "r.html").read_text()
    assert rows_of(page, "woo-1")[0] == ["Bcast", "16", "545 %", "–", "–", "–", "–"]
    assert "no high-bandwidth memory was measured" in page
    assert 'id="table-woo-7"' not in page
    assert rows_of(page, "woo-5")[3][-1] == "5.00"


def test_repeated_runs_share_a_colour_and_a_place_among_ranks(tmp_path):
    for n, again in ((2, 0), (2, 1), (4, 0)):
        report_files.run(tmp_path / f"{n}-{again}", n_ranks=n, samples_used=2000 * n * (1 + again))
    assert report(tmp_path, "--out", tmp_path / "r.html").returncode == 0
    page = (tmp_path / "r.html").read_text()
    assert [row[0] for row in rows_of(page, "runs")] == [
        f"async_ps, {label}" for label in ("2 ranks #1", "2 ranks #2", "4 ranks")
    ]
    assert [row[1:] for row in rows_of(page, "scaling")] == [
        ["2", "3,000", "2", "100.0 %"],
        ["4", "4,000", "1", "66.7 %"],
    ]


def labelled(root):
    found = read.read([str(root)]).runs
    runs.label(found)
    return {run.path.name: run.label for run in found}


def ran(root, name, mode="sync_ps", keys="", **changes):
    """Write a run of a mode, with keys of ``sync`` that it has."""
    path = report_files.run(root, name, sync_mode=mode, **changes)
    config = (path / "config.yaml").read_text()
    (path / "config.yaml").write_text(config.replace("{mode: async_ps}", f"{{mode: {mode}{keys}}}"))


def test_run_is_called_by_what_ran_and_not_by_its_config(tmp_path):
    ran(tmp_path / "a", "fashion_sync_ps")
    ran(tmp_path / "b", "fashion_sync_ps", "allreduce")
    ran(tmp_path / "c", "fashion_easgd", "easgd")
    assert labelled(tmp_path) == {"a": "sync_ps, 4 ranks", "b": "allreduce, 4 ranks", "c": "easgd, 4 ranks"}
    assert labelled(tmp_path / "b") == {"b": "allreduce, 4 ranks"}, "nor is one that is alone"


def test_key_that_not_every_mode_has_tells_runs_apart(tmp_path):
    """They are no repeats of each other, with one colour and #1 and #2 behind their names."""
    ran(tmp_path / "a", "x", "easgd")
    ran(tmp_path / "b", "x", keys=", server: dedicated")
    ran(tmp_path / "c", "x", keys=", server: colocated")
    assert list(labelled(tmp_path).values()) == [
        "easgd, 4 ranks", "sync_ps, server=dedicated, 4 ranks", "sync_ps, server=colocated, 4 ranks"
    ]  # fmt: skip


def test_long_values_tell_runs_apart_too(tmp_path):
    for name in "ab":
        ran(tmp_path / name, "x", keys=f", store: {'long_' * 12}{name}")
    a, b = labelled(tmp_path).values()
    assert "#" not in a + b
    assert (a.removesuffix(", 4 ranks")[-1], b.removesuffix(", 4 ranks")[-1]) == ("a", "b")


def test_config_name_is_the_last_thing_that_tells_apart(tmp_path):
    ran(tmp_path / "a", "baseline")
    ran(tmp_path / "b", "again")
    assert list(labelled(tmp_path).values()) == [
        'sync_ps, config "baseline", 4 ranks',
        'sync_ps, config "again", 4 ranks',
    ]


def test_folders_and_configs_of_runs_are_named(tmp_path, monkeypatch):
    for name in ("runs/001/one", "runs/002/<b>"):
        ran(tmp_path / "grid" / name, "fashion_sync_ps", "allreduce")
    page, _ = make.report([str(tmp_path / "grid")])
    sound(page)
    assert [row[1:] for row in rows_of(page, "folders")] == [
        ["fashion_sync_ps", "runs/001/one"], ["fashion_sync_ps", "runs/002/&lt;b&gt;"]
    ]  # fmt: skip
    monkeypatch.chdir(tmp_path / "grid" / "runs")
    assert [run.folder for run in read.read(["001/one"]).runs] == ["one"]
    assert [run.folder for run in read.read(["001/one/metrics.jsonl"]).runs] == ["one"]
    assert [run.folder for run in read.read(["."]).runs] == ["001/one", "002/<b>"]
    assert [run.folder for run in read.read(["001", "002"]).runs] == ["001/one", "002/<b>"]


def test_samples_and_seconds_are_of_the_same_whole_epochs(tmp_path):
    run = report_files.run(tmp_path / "one", epochs=1)
    record = json.loads((run / "metrics.jsonl").read_text())
    seconds = (0.1, 1.0, 4.0)
    report_files.write_lines(
        run / "metrics.jsonl",
        [{**record, "epoch": n, "epoch_s": s, "samples_per_s": 4000 / s} for n, s in enumerate(seconds, start=1)]
        + [{**record, "epoch": 4, "epoch_s": 0.01, "samples_used": 5, "begun_at": 3995}],
    )
    ((*_, s_an_epoch, rate, _, _),) = rows_of(make.report([str(tmp_path)])[0], "runs")
    assert (s_an_epoch, rate) == ("1.00", "4,000")
    report_files.write_lines(
        run / "metrics.jsonl",
        [{**record, "epoch": n, "epoch_s": s, "samples_per_s": 4000 / s} for n, s in enumerate(seconds[1:], start=1)],
    )
    ((*_, s_an_epoch, rate, _, _),) = rows_of(make.report([str(tmp_path)])[0], "runs")
    assert (s_an_epoch, rate) == ("2.50", "1,600"), "the median of the rates is 2,500"


def test_epochs_stand_in_their_order_also_where_the_file_goes_back(tmp_path):
    run = report_files.run(tmp_path / "one", epochs=1)
    record = json.loads((run / "metrics.jsonl").read_text())
    report_files.write_lines(run / "metrics.jsonl", [{**record, "epoch": n} for n in (1, 3, 2)])
    (shown,) = read.read([str(tmp_path)]).runs
    assert [record["epoch"] for record in shown.records] == [1, 2, 3]


def confused(n, value=3):
    return {"confusion": [[value] * n for _ in range(n)]}


def test_metrics_have_a_curve_a_table_and_a_picture(tmp_path):
    report_files.run(tmp_path / "a")
    page, notices = make.report([str(tmp_path)])
    assert not notices
    assert "top_2 against epochs" in page
    label = "async_ps, 4 ranks"
    assert rows_of(page, "classes") == [[label, "0", "0.500"], [label, "1", "–"], [label, "2", "1.000"]]
    assert "0, 1: 1 samples, 25.0% of the class&#x27;s" in page


@pytest.mark.parametrize(("metrics", "n_cells"), [
    (confused(30), 900),
    (confused(100), 10_000),
    (confused(101), 0),  # more than a picture can show
    ({"confusion": [[1, 2], [3]]}, 0),
    ({"confusion": [[1, -2], [3, 4]]}, 0),
    ({"confusion": [[1, "2"], [3, 4]]}, 0),
    ({"confusion": []}, 0),
    ({"recall": {}, "a" * 99: 0.5, "<b>": [[1]]}, 0),
    ([1], 0),
    (None, 0),
])  # fmt: skip
def test_metrics_of_any_kind_are_shown_or_left_out(tmp_path, metrics, n_cells):
    report_files.run(tmp_path / "a", metrics=metrics, pages={})
    page, _ = make.report([str(tmp_path)])
    sound(page)
    assert page.count('class="heat"') == n_cells
    assert ('id="figure-confusion"' in page) == bool(n_cells)


def test_page_says_where_equal_ranks_are_not_equal_workers(tmp_path):
    said = "At 4 ranks runs differ in workers (3, 4) and global batch (48, 64)"
    ran(tmp_path / "a", "x", n_workers=3, global_batch=48)
    assert said not in make.report([str(tmp_path)])[0]
    ran(tmp_path / "b", "x", "allreduce")
    assert said in make.report([str(tmp_path)])[0]


def test_line_over_ranks_has_the_name_of_its_mode(tmp_path):
    for n in (1, 2):
        report_files.run(tmp_path / str(n), n_ranks=n, sync_mode="alone" if n == 1 else "async_ps")
    assert list(labelled(tmp_path).values()) == ["async_ps, 1 rank", "async_ps, 2 ranks"]
    assert {row[0] for row in rows_of(make.report([str(tmp_path)])[0], "scaling")} == {"async_ps"}
    (tmp_path / "2" / "config.yaml").write_text("")
    assert labelled(tmp_path / "2") == {"2": "async_ps, 2 ranks"}, "the records say it too"


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A folder of real runs, at two numbers of ranks."""
    mpi = launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")
    root = tmp_path_factory.mktemp("real")
    (root / "tiny.yaml").write_text(TINY + f"record: {{dir: {root / 'runs'}}}\n")
    for n in (1, 2):
        ended = launcher.train(mpi, n, root / "tiny.yaml", "sync.mode=allreduce", "--quiet")
        assert ended.status == 0, ended
    return root


@pytest.mark.full
def test_real_runs_are_shown(real):
    ended = report(real, "--out", real / "report.html")
    assert (ended.returncode, ended.stderr) == (0, "")
    page = (real / "report.html").read_text()
    parsed = sound(page)
    for name in ("phases", "bytes", "curves", "pages", "scaling"):
        assert f"figure-{name}" in parsed.ids
    runs = rows_of(page, "runs")
    assert [row[5] for row in runs] == ["1", "2"]
    assert all(row[8] == "2" and float(row[9]) > 0 for row in runs)


def test_report_starts_neither_mpi_nor_numba(report_page, tmp_path):
    program = (
        "import sys; from psframe.report.__main__ import main; "
        f"assert main([{str(report_page.parent)!r}, '--out', {str(tmp_path / 'r.html')!r}]) == 0; "
        "print(sorted({'mpi4py.MPI', 'numba', 'psframe.config.schema', 'matplotlib'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.stdout.splitlines()[-1] == "[]", ended


@pytest.mark.parametrize("axis", [Axis("x"), Axis("x", zero=False), Axis("x", base=10), Axis("x", base=2, whole=True)])
@pytest.mark.parametrize("values", [[], [0], [80, 80], [1, 68], [3e-7, 2.5], [0.1, 0.2, 0.35], [2, 3], [1e-15, 1e18]])
def test_axis_holds_its_values_between_few_ticks(axis, values):
    scale = place(axis, values, 0, 100)
    at = [position for position, _ in scale.ticks]
    assert at == sorted(set(at))
    assert len(at) <= 12
    assert all(-1e-6 <= scale(tick) <= 100 + 1e-6 for tick in at)
    assert all(-1e-6 <= scale(value) <= 100 + 1e-6 for value in values if value > 0 or not axis.base)


def test_run_that_a_bench_cannot_own_is_an_ordinary_one(tmp_path):
    """By one rule, whether its usage is drawn with the bench and whether it is left out of the runs."""
    report_files.run(tmp_path / "runs" / "one")
    for where in ("runs/../runs/one", str(tmp_path / "runs" / "one"), "runs/one\0", "", "x" * 1000, "\ud800"):
        (tmp_path / "threads.json").write_text(json.dumps(report_files.threads(where)))
        page, _ = make.report([str(tmp_path)])
        assert "table-threads" in page, where
        assert "figure-threads-usage" not in page, where
        assert "table-runs" in page, where


def test_bench_keeps_its_runs_to_itself(tmp_path):
    report_files.run(tmp_path / "runs" / "one")
    (tmp_path / "threads.json").write_text(json.dumps(report_files.threads()))
    assert report(tmp_path, "--out", tmp_path / "r.html").returncode == 0
    parsed = sound((tmp_path / "r.html").read_text())
    assert "table-threads" in parsed.ids
    assert "figure-threads-usage-1-0" in parsed.ids
    assert "table-runs" not in parsed.ids
