"""Sums over batches and ranks end in the values of the whole set, and a metric that fails is told in a sentence."""

import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframe.collectives.base import cut
from psframe.errors import UserError
from psframe.nn import metrics
from psframe.nn.metrics import TABLE, compute
from psframe.nn.metrics.meter import Meter, Sums, conclude

OWN = "tests.helpers.own_metrics"
SPECS = ["top_2", *(name for name in TABLE if name != "top_k"), f"{OWN}:MeanMargin", f"{OWN}:Largest"]
EXACT = {"top_2", "confusion", f"{OWN}:Largest"} | {name for name in TABLE if "_" in name and name != "log_loss"}
PARTS = (1, 2, 3, 5, 7, 16)


def flat(value):
    return [number for item in value for number in flat(item)] if isinstance(value, list) else [value]


def in_parts(logits, labels, n_ranks, batch_size, specs=SPECS):
    """Return the values as ranks find them that take a share each, in batches."""
    of_all = metrics.make(metrics.choose(specs), logits.shape[1])
    every = []
    for rank in range(n_ranks):
        meter, share = Meter(of_all), cut(len(labels), n_ranks, rank)
        for lo in range(share.start, share.stop, batch_size):
            batch = slice(lo, min(lo + batch_size, share.stop))
            meter.add(logits[batch], labels[batch])
        every.append(pickle.loads(pickle.dumps(meter.take())))
    values, complaint = conclude(of_all, every)
    assert not complaint
    return values


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 150), st.integers(2, 9), st.integers(0, 10**6), st.integers(1, 40))
def test_values_do_not_depend_on_the_parts(n, n_classes, seed, batch_size):
    random = np.random.default_rng(seed)
    logits = (3 * random.standard_normal((n, n_classes))).astype(np.float32)
    labels = random.integers(0, n_classes, n)
    whole = compute(SPECS, logits, labels)
    assert whole[f"{OWN}:Largest"] == [logits.max(), [n]]
    for n_ranks in PARTS:  # some have no samples where there are fewer of these
        values = in_parts(logits, labels, n_ranks, batch_size)
        assert set(values) == set(whole)
        for label, value in values.items():
            if label in EXACT:
                assert value == whole[label], label
            np.testing.assert_allclose(flat(value), flat(whole[label]), rtol=1e-12, atol=1e-12)


@pytest.mark.full
def test_values_do_not_depend_on_the_parts_of_many_samples():
    random = np.random.default_rng(5)
    logits, labels = random.standard_normal((100_003, 10)).astype(np.float32), random.integers(0, 10, 100_003)
    whole = compute(["log_loss", "ece"], logits, labels)
    for n_ranks in PARTS:
        values = in_parts(logits, labels, n_ranks, 64, ["log_loss", "ece"])
        for label, value in values.items():
            assert abs(value - whole[label]) < 1e-12


def test_meter_begins_anew_and_keeps_no_array_of_the_caller():
    of_all = metrics.make(metrics.choose(["confusion", f"{OWN}:MeanMargin"]), 3)
    meter = Meter(of_all)
    logits, labels = np.eye(3, dtype=np.float32), np.arange(3)
    meter.add(logits, labels)
    first = meter.take()
    logits[:] = 0
    assert conclude(of_all, [first])[0] == {"confusion": np.eye(3).tolist(), "margin": 1.0}
    assert meter.take() == Sums()


def test_no_rank_with_samples_gives_no_values():
    assert conclude(metrics.make(metrics.choose(["ece"]), 3), [Sums(), Sums()]) == ({}, "")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Reshaped", "metric 'margin' must have sums of the same shape for every batch, got (1,) and (4,)"),
        ("Wordy", "from finish; mend it"),
        ("Textual", "got sums of <U1; mend it"),
        ("Writing", "got ValueError in own_metrics.py, line"),
        ("Leaving", "got SystemExit in own_metrics.py, line"),
        ("Unmakeable", "must be made for 6 classes, got ZeroDivisionError in own_metrics.py, line"),
        ("Endless", "at most 12,582,912 characters in a line of metrics.jsonl, got 40,000,018, most of 'margin'"),
        ("nothing", "must have sums and finish, got None; see psframe.nn.metrics.base.Metric"),
    ],
)
def test_metric_that_fails_is_told_before_training(name, said):
    with pytest.raises(UserError) as told:
        metrics.make(metrics.choose(["ece", f"{OWN}:{name}"]), 6)
    assert said in str(told.value)
    assert "\n" not in str(told.value)


def test_metric_that_fails_on_one_rank_is_told_once_all_have_evaluated():
    of_all = metrics.make(metrics.choose(["ece", f"{OWN}:Late"]), 6)
    every = []
    for labels in (np.full(6, 3), np.full(6, 1), np.full(6, 2)):
        meter = Meter(of_all)
        meter.add(np.zeros((6, 6), np.float32), labels)
        meter.add(np.zeros((6, 6), np.float32), np.zeros(6, np.int64))
        every.append(meter.take())
    values, complaint = conclude(of_all, every)
    assert values == {}
    assert "'margin' must give sums of every batch" in complaint
    assert "ArithmeticError in own_metrics.py, line" in complaint
    assert "class 1 is more than I can take" in complaint


def test_metric_that_fails_at_the_end_leaves_the_values_of_the_others():
    of_all = metrics.make(metrics.choose(["top_1", f"{OWN}:LateFinish"]), 6)
    meter = Meter(of_all)
    meter.add(np.eye(12, 6, dtype=np.float32), np.arange(12) % 6)
    values, complaint = conclude(of_all, [meter.take()])
    assert list(values) == ["top_1"]
    assert "OverflowError in own_metrics.py" in complaint


def test_defect_in_a_metric_of_psframe_is_not_taken_for_a_users_mistake(monkeypatch):
    of_all = metrics.make(metrics.choose(["ece"]), 3)
    monkeypatch.setattr(type(of_all["ece"]), "sums", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Meter(of_all).add(np.zeros((1, 3), np.float32), np.zeros(1, np.int64))


def test_values_are_plain_json():
    values = compute(SPECS, np.eye(4, dtype=np.float32), np.arange(4))
    assert json.loads(json.dumps(values, allow_nan=False)) == values
