"""Metrics are those of their definitions, and of scikit-learn where it is installed."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from psframe.errors import UserError
from psframe.nn import metrics
from psframe.nn.losses import softmax_cross_entropy
from psframe.nn.metrics import TABLE, compute
from psframe.nn.metrics.base import predicted
from tests.helpers import metric_references as references
from tests.helpers.suite import IS_FULL

NAMES = [name for name in TABLE if name != "top_k"]
CLOSE = {"rtol": 1e-12, "atol": 1e-12}

DRAWN = st.tuples(
    st.integers(1, 70), st.integers(1, 12), st.integers(0, 10**6), st.sampled_from([1e-3, 1.0, 9.0]), st.booleans()
)


def drawn(case):
    """Return logits and labels; with ``ties``, logits are whole numbers, of which many are equal."""
    n, n_classes, seed, scale, ties = case
    random = np.random.default_rng(seed)
    logits = (scale * random.standard_normal((n, n_classes))).astype(np.float32)
    labels = random.integers(0, random.integers(1, n_classes + 1), n)  # some classes may have no samples
    return (np.round(logits) if ties else logits), labels


@settings(max_examples=150 if IS_FULL else 60, deadline=None)
@given(DRAWN)
@example((1, 1, 0, 1.0, False))
def test_metrics_are_those_of_their_definitions(case):
    logits, labels = drawn(case)
    n_classes = logits.shape[1]
    values = compute([*NAMES, *(f"top_{k}" for k in range(1, n_classes + 1))], logits, labels)
    assert values.pop("confusion") == references.confusion(logits, labels)
    for k in range(1, n_classes + 1):
        assert values.pop(f"top_{k}") == references.top_k(logits, labels, k)
    np.testing.assert_allclose(values.pop("log_loss"), references.log_loss(logits, labels), **CLOSE)
    values.pop("ece")  # below: a confidence at the end of a bin may be rounded into another one
    expected = references.averages(logits, labels)
    assert set(values) == set(expected)
    for name, value in values.items():
        np.testing.assert_allclose(value, expected[name], **CLOSE, err_msg=name)


@settings(max_examples=60, deadline=None)
@given(DRAWN, st.floats(0, 1))
def test_class_that_is_predicted_is_that_of_accuracy_with_numbers_that_are_none(case, share):
    logits, labels = drawn(case)
    draw = np.random.default_rng(case[2])
    logits[draw.random(logits.shape) < share] = np.nan
    _, n_correct = softmax_cross_entropy(logits, labels, logits[:0])
    assert (predicted(logits) == labels).sum() == n_correct


@pytest.mark.parametrize("bins", [1, 2, 10, 15])
def test_calibration_error_is_that_of_its_definition(bins):
    for seed in range(20):
        logits, labels = drawn((57, 5, seed, 1.0, False))
        (value,) = compute([{"name": "ece", "bins": bins}], logits, labels).values()
        np.testing.assert_allclose(value, references.ece(logits, labels, bins), **CLOSE)


def test_calibration_error_of_certain_and_of_undecided_networks():
    right = np.array([[99, 0], [0, 99]], np.float32)
    assert compute(["ece"], right, np.array([0, 1])) == {"ece": 0.0}
    assert compute(["ece"], right, np.array([1, 0])) == {"ece": 1.0}
    # two classes at 0.5, the upper end of the first of two bins: half of the samples are hits
    assert compute([{"name": "ece", "bins": 2}], np.zeros((4, 2)), np.array([0, 1, 0, 1])) == {"ece": 0.0}


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::UserWarning")
@settings(max_examples=60, deadline=None)
@given(DRAWN)
def test_metrics_are_those_of_scikit_learn(case):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    logits, labels = drawn(case)
    for k in {1, max(1, logits.shape[1] - 1)}:
        values = compute([*NAMES, f"top_{k}"], logits, labels)
        expected = references.of_scikit_learn(logits, labels, k)
        assert len(expected) >= 10
        for name, value in expected.items():
            np.testing.assert_allclose(values[name], value, **CLOSE, err_msg=name)


def test_logits_that_are_not_finite_raise_nothing_and_end_in_null():
    logits = np.array([[np.nan, 1, 2], [np.inf, 0, 1], [1, -np.inf, 0], [np.nan] * 3], np.float32)
    labels = np.array([0, 1, 2, 1])
    values = compute(["top_1", "top_3", *NAMES], logits, labels)
    assert values["log_loss"] is None
    assert values["ece"] is None
    assert values["top_1"] == 0
    assert values["top_3"] == 0.5, "a NaN is a miss"
    assert np.sum(values["confusion"]) == 4


def test_top_k_has_its_k_in_its_name():
    logits, labels = drawn((40, 6, 1, 1.0, False))
    by_name, by_key = (compute([spec], logits, labels) for spec in ("top_3", {"name": "top_k", "k": 3}))
    assert by_name == by_key
    assert list(by_name) == ["top_3"]
    assert list(compute(["top_k"], logits, labels)) == ["top_5"]


@pytest.mark.parametrize(
    ("specs", "said"),
    [
        (["top_7"], "top_k must have a k of at most the 6 classes of the data, got 7; give {name: top_k, k: 5}"),
        (["top_0"], "metrics[0].k must be a whole number >= 1, got 0; mend the config"),
        (["ece", "recal"], "metrics[1].name: there is no 'recal'; did you mean 'recall'?"),
        ([{"name": "top_3", "k": 2}], "metrics[0]: top_3 has its k in its name, got k=2, too"),
        ([{"name": "ece", "bin": 2}], "metrics[0].bin: ece takes no such key (got 2); did you mean 'bins'?"),
        ([{"k": 2}], "metrics[0].name must name a strategy, got None"),
        (["ece", {"name": "ece", "bins": 3}], "metrics must have different labels, got 'ece' twice"),
        (["ece", 5], "metrics[1] must be a text or keys and values, got 5"),
        (["threading:Event"], "'threading:Event' must take 1 positional argument(s), and does not"),
        (["tests.helpers.own_metrics:Needy"], "metrics[0].depth is required by tests.helpers.own_metrics:Needy"),
    ],
)
def test_wrong_metric_is_told_in_a_sentence(specs, said):
    with pytest.raises(UserError) as told:
        compute(specs, *drawn((5, 6, 0, 1.0, False)))
    assert said in str(told.value)
    assert "VALUE" not in str(told.value), "a member of a list has no key on the command line"


def test_name_that_is_no_list_is_told_in_a_sentence():
    with pytest.raises(UserError, match="metrics must be a list, got 'top_3'"):
        metrics.choose("top_3")


def test_confusion_of_too_many_classes_is_told_in_a_sentence():
    with pytest.raises(UserError, match="confusion must have at most 1,000 classes, got 1,001; give recall"):
        metrics.make(metrics.choose(["confusion"]), 1001)


@pytest.mark.parametrize(
    ("logits", "labels", "said"),
    [
        (np.zeros((2, 3)), np.array([0, 3]), r"labels must lie in \[0, 3\), got 3"),
        (np.zeros((2, 3)), np.array([0, -1]), r"labels must lie in \[0, 3\), got -1"),
        (np.zeros((2, 3)), np.array([0]), "a row of logits for each label"),
        (np.zeros((2, 3)), np.array([0.0, 1.0]), "2 integer|n integer labels"),
        (np.zeros((0, 3)), np.zeros(0, int), "n >= 1"),
        (np.zeros(3), np.zeros(3, int), "a row of logits for each label"),
    ],
)
def test_wrong_arrays_are_told_in_a_sentence(logits, labels, said):
    with pytest.raises(UserError, match=said):
        compute(["ece"], logits, labels)
