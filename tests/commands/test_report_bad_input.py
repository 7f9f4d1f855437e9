"""Damaged and hostile files: what can be shown is shown, and the rest is told."""

from pathlib import Path

import pytest

from tests.helpers import report_files
from tests.helpers.report_page import report, sound


def test_text_from_files_is_harmless(tmp_path):
    evil = "<script>alert(1)</script>\"'&"
    report_files.run(tmp_path / "a", model=evil, dataset=evil, sync_mode=evil, collective=evil)
    report_files.run(tmp_path / "b", pages={evil: {evil: 3}}, placed={evil: 1}, staleness={evil: 3, "1": 1})
    (tmp_path / "a" / "config.yaml").write_text(f"name: {evil!r}\n{evil[:8]}: {evil!r}\n")
    assert report(tmp_path, "--out", tmp_path / "r.html").returncode == 0
    page = (tmp_path / "r.html").read_text()
    sound(page)
    assert "&lt;script&gt;alert(1)" in page


def damaged_metrics(root: Path):
    run = report_files.run(root / "run")
    content = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(content[:-40])


def damaged_config(root: Path):
    (report_files.run(root / "run") / "config.yaml").write_text("a: [1\n b: }")


def no_metrics(root: Path):
    (report_files.run(root / "run") / "metrics.jsonl").unlink()


def no_epochs(root: Path):
    (report_files.run(root / "run") / "metrics.jsonl").write_text("")


def two_models(root: Path):
    report_files.run(root / "a")
    report_files.run(root / "b", model="vgg16")


def damaged_table(root: Path):
    path = report_files.collectives(root / "c") / "collectives.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:90], "host,0,0,bcast", 'host,"0,x,bcast', "\0\0", *lines[90:]]))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (damaged_metrics, ["the last line was cut short"]),
        (damaged_config, ["config.yaml is damaged"]),
        (no_metrics, ["metrics.jsonl cannot be read", "has no epoch that was finished"]),
        (no_epochs, ["has no epoch that was finished"]),
        (two_models, ["runs of different models (lenet, vgg16)"]),
        (damaged_table, ["3 damaged line(s) are left out"]),
    ],
)
def test_page_shows_what_can_be_shown(make, words, tmp_path):
    make(tmp_path)
    ended = report(tmp_path, tmp_path / "gone", "--out", tmp_path / "r.html")
    assert ended.returncode == 0
    assert "Traceback" not in ended.stderr
    page = (tmp_path / "r.html").read_text()
    assert "notices" in sound(page).ids
    for word in [*words, "gone"]:
        assert word in ended.stderr
        assert word in page
    assert all(line.startswith("psframe: warning: ") for line in ended.stderr.splitlines())


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], ["the command must be"]),
        (["no-such-folder"], ["nothing that can be shown", "no-such-folder"]),
        (["configs"], ["nothing that can be shown", "'configs'"]),
        (["pyproject.toml"], ["a JSON file must be whole", "pyproject.toml"]),
        (["{run}", "--out", "/proc/1/no.html"], ["--out must be a file that can be written", "/proc/1/no.html"]),
        (["{run}", "--out", "configs"], ["--out must be a file that can be written", "'configs'"]),
    ],
)
def test_mistakes_are_told_in_one_sentence(arguments, words, tmp_path):
    run = report_files.run(tmp_path / "run")
    ended = report(*(a.format(run=run) for a in arguments))
    assert ended.returncode == 2
    assert len(ended.stderr.splitlines()) == 1
    for word in words:
        assert word in ended.stderr
