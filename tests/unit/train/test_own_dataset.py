"""What a user's own dataset says and returns: lists, and whatever else is no array, are told in one sentence."""

import json
from dataclasses import replace

import numpy as np
import pytest

from psframe.datasets.base import Dataset, Split, held
from psframe.errors import UserError
from psframe.train.data.dataset import Facts, _fill, moments

SHAPE = (1, 4, 5)
IMAGES, LABELS = np.zeros((6, *SHAPE), np.float32), np.arange(6) % 3
GOOD = Dataset(SHAPE, "float32", 3, held(IMAGES, LABELS), held(IMAGES, LABELS))


def filled(dataset):
    facts = Facts.of(dataset)
    arrays = facts.arrays(np.zeros(facts.n_bytes, np.uint8))
    _fill(facts, dataset, arrays)
    return arrays


def returning(*found):
    """Return a dataset whose training split returns just that."""
    return replace(GOOD, train=Split(6, lambda lo, hi: found if len(found) != 1 else found[0]))


@pytest.mark.parametrize(
    ("dataset", "got"),
    [
        (replace(GOOD, train=held(IMAGES.tolist(), LABELS.tolist())), "a list of 6 and a list of 6"),
        (returning(IMAGES, LABELS.tolist()), "a list of 6"),
        (returning([[1], [2, 3]] * 3, LABELS), "a list of 6 and int64"),
        (returning(None, None), "None and None"),
        (returning(None), "None"),
        (returning([IMAGES, LABELS]), "a list"),
        (returning(IMAGES, LABELS, LABELS), "a tuple"),
        (returning(IMAGES.astype(object), LABELS), r"object \(6, 1, 4, 5\)"),
        (returning(IMAGES, np.array([None] * 6)), r"object \(6,\)"),
        (returning(IMAGES, LABELS + 0.5), r"float64 \(6,\)"),
        (returning(IMAGES[1:], LABELS), r"float32 \(5, 1, 4, 5\)"),
        (returning(IMAGES, LABELS[:, None]), r"int64 \(6, 1\)"),
        (replace(GOOD, dtype="uint8", train=held(IMAGES.astype(np.uint16), LABELS)), r"uint16 \(6, 1, 4, 5\)"),
    ],
)
def test_read_that_returns_something_else_is_told(dataset, got):
    with pytest.raises(
        UserError, match=rf"^read\(0, 6\) of the train split must return two NumPy arrays, .* got .*{got}"
    ):
        filled(dataset)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("train", (IMAGES, LABELS)),
        ("test", [1, 2]),
        ("train", Split(6.0, GOOD.train.read)),
        ("train", Split(6, [IMAGES, LABELS])),
        ("shape", 28),
        ("shape", (1, 28, "28")),
        ("shape", (28,)),
        ("n_classes", "3"),
        ("n_classes", 0),
        ("dtype", np.float32),
        ("crop", (8, 8)),
        ("crop", 3),
        ("mean", [1, 2]),
        ("std", "x"),
        ("dtype", "float64"),
        ("train", Split(0, GOOD.train.read)),
        ("test", Split(-1, GOOD.test.read)),
        ("mean", [float("nan")]),
        ("mean", [10**400]),
        ("mean", ["1"]),
        ("mean", [[1], [2, 3]]),
        ("std", [float("inf")]),
        ("std", [0.0]),
        ("std", [-1]),
    ],
)
def test_field_that_is_none_of_a_dataset_is_named(field, value):
    with pytest.raises(UserError, match=rf"^a dataset's {field}\b.* must be .*; mend the dataset$"):
        Facts.of(replace(GOOD, **{field: value}))


def test_numbers_of_numpy_are_taken():
    """Which are no plain values, as nodes tell them to each other."""
    whole = np.int64(6)
    numpy = replace(
        GOOD, shape=tuple(np.array(SHAPE)), n_classes=np.int32(3), train=Split(whole, GOOD.train.read),
        crop=(np.int64(4), whole - 1), flip=np.bool_(True), mean=np.zeros(1), std=np.ones(1, np.float32),
    )  # fmt: skip
    facts = Facts.of(numpy)
    assert Facts(**json.loads(json.dumps(facts.to_plain()))) == facts
    assert facts == Facts(list(SHAPE), "float32", 3, 6, 6, [4, 5], True, [0.0], [1.0])


def test_lists_and_other_numbers_of_the_same_kind_are_taken():
    loose = replace(GOOD, shape=list(SHAPE), mean=[0.0], std=[1], train=returning(IMAGES.astype("f8"), LABELS).train)
    assert filled(loose)["train_labels"].tolist() == LABELS.tolist()


@pytest.mark.parametrize(
    ("given", "expected"), [({"mean": [2.0]}, (2.0, 3.0)), ({"std": [4.0]}, (5.0, 4.0)), ({}, (5.0, 3.0))]
)
def test_moments_that_are_not_given_are_measured(given, expected):
    images = np.resize(np.array([2, 8], np.float32), IMAGES.shape)
    found = filled(replace(GOOD, **given, train=held(images, LABELS)))["moments"]
    np.testing.assert_allclose(found[:, 0], expected)


def test_channel_of_equal_numbers_has_a_deviation_of_1():
    draw = np.random.default_rng(0)
    for n in range(700, 730):
        images = np.broadcast_to(draw.normal(0, 10, (1, 3, 1, 1)), (n, 3, 1, 100)).astype(np.float32)
        np.testing.assert_array_equal(moments(images)[1], 1)
    steps = np.tile(np.float32([1000, 1000.001]), 300).reshape(6, 1, 1, 100)
    assert moments(steps)[1, 0] == pytest.approx(5e-4, rel=0.1)
