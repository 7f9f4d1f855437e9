"""Runs that are disturbed at random, or have bits flipped, come to the end that was promised."""

import re
import subprocess
import sys
from collections import Counter

import pytest

from tests.helpers import launcher
from tests.helpers.launcher import ROOT
from tests.stress import flips
from tests.stress.chaos import trials
from tests.stress.chaos.disturbances import KINDS
from tests.stress.chaos.trials import Outcome


def an_mpi():
    if not (launcher.installed("mpich") or launcher.installed("openmpi")):
        pytest.skip("no MPI: bash launch/test.sh installs two")


def disturb(kills, seed, timeout_s, *more):
    """Return the last row of the table of a campaign that has gone well."""
    an_mpi()
    command = [sys.executable, "-m", "tests.stress.chaos", "--kills", str(kills), "--seed", str(seed), *more]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)
    assert ended.returncode == 0, f"{ended.stdout}\n{ended.stderr}"
    return [int(number) for number in re.findall(r"\d+", ended.stdout.splitlines()[-1])]


def test_disturbed_runs_end_as_they_should():
    tried, went_on, resumed, lost, hung, compared, equal = disturb(1, 1, 1200)
    assert (tried, went_on + resumed, lost, hung) == (1, 1, 0, 0)
    assert compared == equal > 0


@pytest.mark.soak
@pytest.mark.parametrize("seed", [2, 3])
def test_disturbed_runs_by_hundreds_end_as_they_should(seed):
    assert disturb(150, seed, 4 * 3600)[0] == 150


def test_trial_depends_on_its_number_alone():
    kinds, mpis = tuple(KINDS), ("mpich", "openmpi", "ulfm")
    drawn = [trials.draw(7, number, mpis, kinds) for number in range(300)]
    assert drawn == [trials.draw(7, number, mpis, kinds) for number in range(300)]
    assert {trial.kind for trial in drawn} == set(kinds)
    assert 100 < sum(bool(trial.exact) for trial in drawn) < 200


def test_lost_run_is_no_success(tmp_path):
    """What the campaign calls lost, shown to it: records that miss an epoch, and a ``latest`` that names nothing."""
    run = tmp_path / "runs" / "chaos-1"
    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "latest").write_text("epoch-00001-step-0000000001.h5\n")
    layout = trials.Layout("", 1)
    assert "epoch-00001-step-0000000001.h5" in trials.unreadable(tmp_path / "runs", layout)
    (run / "metrics.jsonl").write_text('{"epoch": 1}\n{"epoch": 1}\n')
    trial = trials.draw(1, 1, ("mpich",), tuple(KINDS))
    held = trials._held(trial, tmp_path, "resumed", [], {})
    assert isinstance(held, Outcome)
    assert held.how == "lost"


def test_flips_are_caught_or_harmless(tmp_path):
    an_mpi()
    (tmp_path / "files").mkdir()
    found, files = flips.campaign(2, 6, tmp_path), flips.in_files(2, 200, tmp_path / "files")
    assert len(found) == 6
    assert files == Counter(caught=200)
    assert not flips.missed(found, files), found


@pytest.mark.soak
def test_flips_by_hundreds_are_caught_or_harmless(tmp_path):
    (tmp_path / "files").mkdir()
    found, files = flips.campaign(3, 600, tmp_path), flips.in_files(3, 6000, tmp_path / "files")
    assert not flips.missed(found, files), "\n".join(flips.table(found, files))
