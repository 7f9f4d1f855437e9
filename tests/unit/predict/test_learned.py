"""Corrections of predictions by measured epochs."""

from statistics import mean, median

import pytest

from psframe.predict import check, learned, machine
from psframe.predict.machine import Check

SHARED, BUFFER = "lenet, batch 32, allreduce shared", "lenet, batch 32, allreduce buffer any order"


def test_nothing_is_corrected_without_epochs():
    assert learned.factor([], SHARED, 4, 1) == 1.0


def test_epochs_that_are_alike_count_most():
    slow = Check(SHARED, 4, 1.0, 2.0)
    here = learned.factor([slow], SHARED, 4, 1)
    assert 1.5 < here < 2.0
    others = [
        learned.factor([slow], SHARED, 16, 1),
        learned.factor([slow], BUFFER, 4, 1),
        learned.factor([slow], "alexnet, batch 32, allreduce shared", 4, 1),
    ]
    assert all(1.0 < other < here for other in others)
    assert learned.factor([slow], SHARED, 4, 2) == 1.0, "more hosts have links"
    assert learned.factor([slow], SHARED.replace("32", "64"), 4, 1) == here, "whatever the batch"


def test_many_epochs_outweigh_the_prior():
    assert learned.factor([Check(SHARED, 4, 1.0, 2.0)] * 50, SHARED, 4, 1) == pytest.approx(2.0, rel=0.02)


@pytest.mark.parametrize("bias", [0.5, 1.0, 1.7])
def test_epoch_that_is_left_out_is_predicted_better_than_without_the_others(bias):
    """The model is wrong by a factor for one exchange, and by some per cent besides."""
    checks = [
        Check(what, ranks, 1.0, (bias if what == BUFFER else 1.0) * (1 + 0.02 * (ranks % 3)))
        for what in (SHARED, BUFFER)
        for ranks in (2, 3, 4, 6, 8, 12, 16)
    ]
    raw = [abs(check.error) for check in checks]
    assert median(map(abs, learned.errors(checks))) <= max(0.08, median(raw))
    of_buffer = [abs(e) for e, check in zip(learned.errors(checks), checks, strict=True) if check.what == BUFFER]
    if bias != 1.0:
        assert max(of_buffer) < abs(1 / bias - 1)
    assert "corrected by all others" in learned.told(checks)


def test_measured_machine_is_not_predicted_worse():
    checks = machine.read("epyc-2-cores").checks
    raw, corrected = ([abs(e) for e in errors] for errors in ([c.error for c in checks], learned.errors(checks)))
    assert mean(corrected) < mean(raw)
    assert max(corrected) < max(raw)


def test_profile_that_comes_with_psframe_is_left_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = check.add("epyc-2-cores", [Check(SHARED, 4, 1.0, 2.0)])
    assert found.checks[-1] == Check(SHARED, 4, 1.0, 2.0)
    assert not list(tmp_path.iterdir())
    machine.write("mine.yaml", found)
    assert check.add("mine.yaml", [Check(SHARED, 3, 1.0, 2.0)]) == machine.read("mine.yaml")
