"""The page of psframe.report, made of real runs and benches' files."""

import json
import subprocess
import sys

import pytest

from psframe.report.scale import Axis, place
from tests import launcher, report_files
from tests.conftest import TINY
from tests.report_page import FIGURES, TABLES, report, rows_of, sound


def test_every_figure_and_table_is_there(report_page):
    parsed = sound(report_page.read_text())
    for name in FIGURES:
        assert f"figure-{name}" in parsed.ids
    for name in TABLES:
        assert f"table-{name}" in parsed.ids
    assert "notices" not in parsed.ids


def test_the_papers_values_stand_beside_those_measured(report_page):
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
    assert "A many-core CPU, 2 cores, SNC-4, MPICH 5.0" in page


def test_without_high_bandwidth_memory_the_tables_say_so(tmp_path):
    report_files.collectives(tmp_path / "c", memories=("default",))
    assert report(tmp_path, "--out", tmp_path / "r.html").returncode == 0
    page = (tmp_path / "r.html").read_text()
    assert rows_of(page, "woo-1")[0] == ["Bcast", "16", "545 %", "–", "–", "–", "–"]
    assert "no high-bandwidth memory was measured" in page
    assert 'id="table-woo-7"' not in page
    assert rows_of(page, "woo-5")[3][-1] == "5.00"


def test_repeated_runs_share_a_colour_and_a_place_among_ranks(tmp_path):
    for n, again in ((2, 0), (2, 1), (4, 0)):
        report_files.run(tmp_path / f"{n}-{again}", n_ranks=n, samples_per_s=1000.0 * n * (1 + again))
    assert report(tmp_path, "--out", tmp_path / "r.html").returncode == 0
    page = (tmp_path / "r.html").read_text()
    assert [row[0] for row in rows_of(page, "runs")] == [
        f"fashion, {label}" for label in ("2 ranks #1", "2 ranks #2", "4 ranks")
    ]
    assert [row[1:] for row in rows_of(page, "scaling")] == [
        ["2", "3,000", "2", "100.0 %"],
        ["4", "4,000", "1", "66.7 %"],
    ]


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


def test_real_runs_are_shown(real):
    ended = report(real, "--out", real / "report.html")
    assert (ended.returncode, ended.stderr) == (0, "")
    page = (real / "report.html").read_text()
    parsed = sound(page)
    for name in ("phases", "bytes", "curves", "pages", "scaling"):
        assert f"figure-{name}" in parsed.ids
    runs = rows_of(page, "runs")
    assert [row[5] for row in runs] == ["1", "2"]
    assert all(row[7] == "2" and float(row[8]) > 0 for row in runs)


def test_it_starts_neither_mpi_nor_numba(report_page, tmp_path):
    program = (
        "import sys; from psframe.report.__main__ import main; "
        f"assert main([{str(report_page.parent)!r}, '--out', {str(tmp_path / 'r.html')!r}]) == 0; "
        "print(sorted({'mpi4py.MPI', 'numba', 'psframe.config', 'matplotlib'} & set(sys.modules)))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert ended.stdout.splitlines()[-1] == "[]", ended


@pytest.mark.parametrize("axis", [Axis("x"), Axis("x", zero=False), Axis("x", base=10), Axis("x", base=2, whole=True)])
@pytest.mark.parametrize("values", [[], [0], [80, 80], [1, 68], [3e-7, 2.5], [0.1, 0.2, 0.35], [2, 3], [1e-15, 1e18]])
def test_an_axis_holds_its_values_between_few_ticks(axis, values):
    scale = place(axis, values, 0, 100)
    at = [position for position, _ in scale.ticks]
    assert at == sorted(set(at))
    assert len(at) <= 12
    assert all(-1e-6 <= scale(tick) <= 100 + 1e-6 for tick in at)
    assert all(-1e-6 <= scale(value) <= 100 + 1e-6 for value in values if value > 0 or not axis.base)


def test_a_bench_keeps_its_runs_to_itself(tmp_path):
    report_files.run(tmp_path / "runs" / "one")
    (tmp_path / "threads.json").write_text(json.dumps(report_files.threads()))
    assert report(tmp_path, "--out", tmp_path / "r.html").returncode == 0
    parsed = sound((tmp_path / "r.html").read_text())
    assert "table-threads" in parsed.ids
    assert "figure-threads-usage-1-0" in parsed.ids
    assert "table-runs" not in parsed.ids
