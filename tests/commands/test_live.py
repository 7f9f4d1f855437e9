"""A job that trains, seen by ``psframe top`` and ``psframe watch``, which it does not notice."""

import json
import os
import shutil
import signal
import subprocess
import sys
from urllib.request import urlopen

import pytest

from tests.helpers.launcher import ROOT
from tests.helpers.live import ends, start


@pytest.fixture
def job(mpich, tmp_path):
    """A job of three ranks that trains, with the folder of its run."""
    path = tmp_path / "long.yaml"
    path.write_text(
        "model: tests.helpers.tiny:build\ndataset: {name: synthetic, shape: [1, 6, 6], classes: 3, samples: 600}\n"
        f"train: {{epochs: 100000, batch_size: 8}}\noptimizer: {{lr: 0.001}}\nrecord: {{dir: {tmp_path / 'runs'}}}\n"
        "checkpoint: {every_epochs: 0}\nfault: {late_s: 0}\n"
    )
    process, _ = start(mpich, 3, str(path))
    yield next((tmp_path / "runs").glob("long-*"))
    process.poll() is None and os.kill(process.pid, signal.SIGTERM)
    ends(process, str(path))


def test_top_shows_a_row_of_each_rank(job):
    words = [sys.executable, "-m", "psframe.doctor.live.top", str(job), "--once"]
    ended = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
    assert "3 of 3 ranks on this host" in ended.stdout
    rows = [line.split() for line in ended.stdout.splitlines() if line.strip().endswith((" R", " S", " D"))]
    assert [row[0] for row in rows] == ["0", "1", "2"]
    assert "loss" in ended.stdout


@pytest.fixture
def page(job):
    """The address of a page on the job."""
    words = [sys.executable, "-m", "psframe.doctor.live.watch", str(job)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    yield process.stdout.readline().strip()
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)


def test_page_draws_in_a_browser_without_a_complaint(page, tmp_path):
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    browser = found or pytest.skip("no Chromium or Chrome: install the package chromium")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0", "--timeout=100000"]
    flags += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000", "--dump-dom"]
    ended = subprocess.run([browser, *flags, page], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert not [line for line in ended.stderr.splitlines() if "CONSOLE" in line]
    assert ended.stdout.count("<td") >= 30
    assert "<polyline" in ended.stdout
    assert "3 of 3 ranks on this host" in ended.stdout


@pytest.mark.full
def test_page_tells_of_ranks_that_go_on(page):
    def steps():
        with urlopen(page.replace("/?", "/data?"), timeout=60) as answer:
            return [row["step"] for row in json.load(answer)["rows"]]

    first = steps()
    while (later := steps()) == first:  # the time-out of an answer is the test's
        pass
    assert len(first) == len(later) == 3
