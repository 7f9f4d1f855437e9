"""Membership of a job as a model: no order of events ends in a step with two memberships, a lost sample, or a hang."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.helpers.thinned import thinned

MODEL = Path(__file__).with_name("membership.pml")
#: what is wrong in the model with that number, in words
MISTAKES = {
    1: "a rank that leaves goes on to train",
    2: "a rank that joins does not take over the place",
    3: "rank 0 commits before all have arrived",
    4: "rank 0 changes the ranks, and has not asked them to pause",
    5: "a change goes back by a step",
    6: "those who notice a loss do not revoke",
    7: "spares are not called when a rank is lost",
    8: "the step under way counts as done after a loss",
    9: "Shrink waits for the one that died",
    10: "after a loss each goes by its own view of who trains",
    11: "spares are not told that the job ends",
    12: "the last barrier waits for one that died",
    13: "a rank that died counts as arrived",
    14: "members do not agree on the place after a loss",
    15: "messages of before a loss are heard after it",
}


def checked(folder, **defined):
    """Go through all states of the model; return what Spin's verifier says."""
    if not shutil.which("spin"):
        pytest.skip("no spin, which goes through the states of models: apt-get install spin")
    words = [f"-D{name}={value}" for name, value in defined.items()]
    for command in (
        ["spin", *words, "-a", str(MODEL)],
        ["gcc", "-O2", "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c"],
        ["./pan", "-m100000"],
    ):
        ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
        assert ended.returncode == 0, (ended.stdout, ended.stderr)
    assert "max search depth too small" not in ended.stdout
    return ended.stdout


@pytest.mark.parametrize(("n", "steps"), [(3, 3), pytest.param(4, 2, marks=pytest.mark.full)])
def test_every_order_of_events_ends_well(tmp_path, n, steps):
    told = checked(tmp_path, N=n, STEPS=steps)
    assert "errors: 0" in told, told
    assert int(re.search(r"(\d+) states, stored", told)[1]) > 1_000_000


@pytest.mark.parametrize("mistake", thinned(list(MISTAKES), (6, 9)), ids=str)
def test_mistake_is_found(tmp_path, mistake):
    assert f"MISTAKE == {mistake} " in MODEL.read_text() or f"MISTAKE != {mistake}" in MODEL.read_text()
    assert "errors: 1" in checked(tmp_path, MISTAKE=mistake), MISTAKES[mistake]
