"""What the soak test calls growth; and that it sees what a run leaks."""

import re
import subprocess
import sys

import numpy as np
import pytest

from tests.helpers import launcher
from tests.helpers.launcher import ROOT
from tests.stress.soak import Series, check, slope

LEAKY = """\
import mmap, os
from psframe.collectives.buffer import Buffer

class Leaky(Buffer):
    kept, calls = [], 0
    def broadcast(self, params):
        self.calls += 1
        if self.calls % 200 == 0 and len(self.kept) < 900:
            self.leak()
        super().broadcast(params)

class Memory(Leaky):
    def leak(self):
        self.kept.append(b"." * 200_000)

class Descriptors(Leaky):
    def leak(self):
        self.kept.append(os.open("/", os.O_RDONLY))

class Mappings(Leaky):
    def leak(self):
        # the kernel would merge two that it may handle alike
        self.kept.append(mmap.mmap(-1, 4096, prot=mmap.PROT_READ if len(self.kept) % 2 else mmap.PROT_WRITE))
"""


def series(values):
    return Series(list(np.arange(float(len(values)))), [tuple(of) for of in values])


def flat(n):
    return np.tile([100.0, 30.0, 500.0], (n, 1))


def test_slope_is_told_an_hour():
    assert slope(np.arange(60.0), 5 + 2 * np.arange(60.0)) == pytest.approx(7200)


def test_series_that_stays_or_goes_up_and_down_has_not_grown():
    values = flat(120)
    values[:, 0] += 50 * (np.arange(120) % 13)
    values[:, 1] += np.arange(120) % 2
    assert check([series(flat(120)), series(values)])[1] == []


def test_series_that_grows_in_the_warm_up_has_not_grown():
    values = flat(120)
    values[:40, 0] -= np.arange(40)[::-1]
    assert check([series(values)])[1] == []


@pytest.mark.parametrize(("number", "a_sample", "name"), [(0, 0.05, "memory"), (1, 0.05, "desc"), (2, 0.2, "mappings")])
def test_growth_in_one_rank_is_told(number, a_sample, name):
    values = flat(120)
    values[:, number] += np.floor(a_sample * np.arange(120)) if number else a_sample * np.arange(120)
    (told,) = check([series(flat(120)), series(values), series(flat(120))])[1]
    assert name in told


@pytest.fixture
def soak():
    launcher.installed("mpich") or pytest.skip("no mpich: bash launch/test.sh installs it")

    def run(ranks, minutes, *keys, **env):
        command = [sys.executable, "-m", "tests.stress.soak", "--ranks", str(ranks), "--minutes", str(minutes), *keys]
        return subprocess.run(
            command, cwd=ROOT, env=launcher.os.environ | env, capture_output=True, text=True, timeout=60 * minutes + 600
        )

    return run


@pytest.mark.soak
def test_epochs_by_the_thousand_leave_nothing_in_memory(soak):
    ended = soak(2, 0.6, "dataset.samples=200", "fault={}")
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"


@pytest.mark.soak
@pytest.mark.parametrize(("kind", "named"), [("Memory", "MiB of memory"), ("Descriptors", "desc"), ("Mappings", "map")])
def test_run_that_leaks_is_told(soak, tmp_path, kind, named):
    (tmp_path / "leaky.py").write_text(LEAKY)
    ended = soak(2, 0.5, f"collective=leaky:{kind}", "sync=sync_ps", PYTHONPATH=str(tmp_path))
    assert ended.returncode == 1, ended
    assert re.search(f"^{named}.* grew by", ended.stdout, re.MULTILINE), ended.stdout


@pytest.mark.soak
@pytest.mark.parametrize("ranks", [4, 64])
def test_runs_do_not_grow(soak, ranks):
    ended = soak(ranks, 5)
    assert ended.returncode == 0, ended
