"""Runs that are disturbed at random, lose ranks, or have bits flipped, come to the end that was promised."""

import re
import subprocess
import sys
from collections import Counter
from itertools import product

import pytest

from tests.helpers import launcher
from tests.helpers.launcher import ROOT
from tests.helpers.seeds import seeded
from tests.stress import flips, kills
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


@pytest.mark.full
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


@pytest.mark.full
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


@pytest.mark.full
@pytest.mark.parametrize("n", [1, 26, pytest.param(400, marks=pytest.mark.soak)])
def test_killed_ranks_are_done_without(ulfm, tmp_path, n):
    """While others join, leave and stop: the bits are those of a run that nobody disturbed."""
    outcomes = kills.campaign(ulfm, seeded("trials").randrange(2**32), n, tmp_path)
    assert sum(trial.kills for trial in outcomes) >= n
    assert not any(outcomes.values()), {trial: why for trial, why in outcomes.items() if why}


def test_trial_with_kills_keeps_more_ranks_than_it_kills():
    trials = [kills.drawn(5, number) for number in range(300)]
    assert trials == [kills.drawn(5, number) for number in range(300)]
    for trial in trials:
        whats = [part.partition(":")[2] for part in trial.schedule.split(",")]
        assert len({what.split("-")[1] for what in whats if what.startswith("kill-")}) == trial.kills
        assert all(trial.kills < int(n) <= trial.n for n in [*filter(str.isdigit, whats), str(trial.first)])
    assert {trial.kills for trial in trials} == {1, 2, 3}
    assert {(trial.mode, trial.collective) for trial in trials} == {*product(kills.MODES, kills.COLLECTIVES)}
