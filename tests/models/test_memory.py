"""Protocols in shared memory as models: gates, commits and pulls miss no wake-up, and nobody reads torn parameters."""

import re

import pytest

from tests.helpers.spin import MODELS, checked
from tests.helpers.thinned import thinned

#: what is wrong in a model with that number, in words
MISTAKES = {
    "gates.pml": {
        1: "arrivals are counted in two steps",
        2: "the last to arrive looks for sleepers before it opens the gate",
        3: "a rank sleeps without being counted",
        4: "the kernel does not compare the word before it lets a rank sleep",
        5: "reducers do not wait for the gradients",
        6: "an update goes to the copy that others read",
        7: "a rank goes on before all reducers are done",
    },
    "pull.pml": {
        1: "an update is announced once it is written",
        2: "an update goes to the copy that others read",
        3: "an update is committed before it is written",
        4: "a pull that was overtaken counts",
        5: "rank 0 does not take the lock",
        6: "the lock is not free when its holder lets it go",
        7: "who lets the lock go wakes nobody",
    },
}
SMALL = {"gates.pml": {"N": 2, "STEPS": 3}, "pull.pml": {"UPDATES": 3}}
LARGE = {"gates.pml": {"N": 3, "STEPS": 2}, "pull.pml": {"UPDATES": 4}}
EACH = [(model, mistake) for model, of_model in MISTAKES.items() for mistake in of_model]


@pytest.mark.parametrize("defined", [SMALL, pytest.param(LARGE, marks=pytest.mark.full)], ids=("small", "large"))
@pytest.mark.parametrize("model", thinned(MISTAKES, (0,)))
def test_every_order_of_events_ends_well(tmp_path, model, defined):
    told = checked(model, tmp_path, **defined[model])
    assert "errors: 0" in told, told
    assert int(re.search(r"(\d+) states, stored", told)[1]) > 10_000


@pytest.mark.parametrize(("model", "mistake"), thinned(EACH, (1,)))
def test_mistake_is_found(tmp_path, model, mistake):
    assert re.search(rf"MISTAKE [!=]= {mistake}\b", (MODELS / model).read_text())
    assert "errors: 1" in checked(model, tmp_path, MISTAKE=mistake), MISTAKES[model][mistake]
