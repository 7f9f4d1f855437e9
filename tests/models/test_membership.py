"""Membership of a job as a model: no order of events ends in a step with two memberships, a lost sample, or a hang."""

import re

import pytest

from tests.helpers.spin import MODELS, checked
from tests.helpers.thinned import thinned

MODEL = "membership.pml"
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
    16: "who leads in the place of rank 0 goes by that one's count of steps, not by its own state",
    17: "the first rank that is left leads, whether it has the state or not",
    18: "in a change rank 0 alone keeps the state",
    19: "who leads in the place of rank 0 does not tell the spares",
    20: "members at the end wait for a rank 0 that has died",
    21: "every rank that has the state leads",
    22: "a rank that has heard of the end does not meet those that have not, when one has died",
}


@pytest.mark.full
@pytest.mark.parametrize(("n", "steps"), [(3, 3), (4, 2)])
def test_every_order_of_events_ends_well(tmp_path, n, steps):
    told = checked(MODEL, tmp_path, N=n, STEPS=steps)
    assert "errors: 0" in told, told
    assert float(re.search(r"([\d.e+]+) states, stored", told)[1]) > 1_000_000


@pytest.mark.parametrize("mistake", thinned(list(MISTAKES), (9,)), ids=str)
def test_mistake_is_found(tmp_path, mistake):
    text = (MODELS / MODEL).read_text()
    assert f"MISTAKE == {mistake} " in text or f"MISTAKE != {mistake}" in text
    assert "errors: 1" in checked(MODEL, tmp_path, MISTAKE=mistake), MISTAKES[mistake]
