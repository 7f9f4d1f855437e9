"""Groups of tensors, and the parts of a vector that follow from them."""

import pickle

import pytest

from psframe.errors import UserError
from psframe.memory.arena import Layout
from psframe.nn.base import Param
from psframe.optim import LAMB, SGD, AdamW, groups

SHAPES = {"0.Conv2d.weight": (2, 2), "0.Conv2d.bias": (2,), "1.Dense.weight": (40, 1), "1.Dense.bias": (40,)}
LAYOUT = Layout(
    {name: Param(shape, tuple(range(len(shape)))) for name, shape in SHAPES.items()}
    | {"mean": Param((3,), (0,), trained=False)}
)


def rows(given, decay=0.1, decays_vectors=True):
    return groups.rows(LAYOUT, groups.read(given), decay, decays_vectors)


def test_last_group_that_matches_counts():
    given = [{"tensors": "*"}, {"tensors": "*.bias", "lr": 2.0}, {"tensors": "1.*", "weight_decay": 0.0}]
    assert [row[2:5] for row in rows(given)] == [
        (True, 1.0, 0.1),
        (True, 2.0, 0.1),
        (True, 1.0, 0.0),
        (True, 1.0, 0.0),
        (False, 1.0, 0.0),
    ]


def test_tensors_of_one_dimension_decay_where_the_optimizer_or_a_group_says_so():
    assert [row[4] for row in rows(None, decays_vectors=False)] == [0.1, 0.0, 0.1, 0.0, 0.0]
    assert [row[4] for row in rows([{"tensors": "0*", "weight_decay": 0.3}], 0.1, False)] == [0.3, 0.3, 0.1, 0.0, 0.0]


def test_neighbours_of_one_rule_are_one_part():
    assert groups.merged(rows(None), LAYOUT) == [(0, 128, True, 1.0, 0.1, True), (128, 144, False, 1.0, 0.0, False)]
    merged = groups.merged(rows([{"tensors": "1.Dense.weight", "lr": 2.0}]), LAYOUT)
    assert [(start, stop, lr) for start, stop, _, lr, _, _ in merged] == [
        (0, 32, 1.0),
        (32, 80, 2.0),
        (80, 128, 1.0),
        (128, 144, 1.0),
    ]
    assert groups.merged([], Layout({})) == [(0, 16, True, 1.0, 0.0, True)]


@pytest.mark.parametrize(
    ("make", "given", "said"),
    [
        (SGD, {"tensors": "*", "rate": 2}, r"optimizer\.groups\[0\]\.rate is no key of a group \(got 2\)"),
        (SGD, {"lr": 2.0}, r"optimizer\.groups\[0\]\.tensors must be a pattern of names, got none"),
        (SGD, {"tensors": "*", "lr": -1.0}, r"optimizer\.groups\[0\]\.lr must be a number >= 0"),
        (SGD, {"tensors": 3}, r"optimizer\.groups\[0\]\.tensors must be a text"),
        (SGD, {"tensors": "*", "adapt": False}, "adapt is for lars and lamb"),
    ],
)
def test_group_that_is_none_is_told(make, given, said):
    with pytest.raises(UserError, match=said):
        make(groups=[given])


@pytest.mark.parametrize("pattern", ["*.bais", "mean", "*.BIAS"])
def test_group_that_matches_no_trained_tensor_is_told_with_the_nearest(pattern):
    optimizer = AdamW(groups=[{"tensors": "*.bias"}, {"tensors": pattern}])
    with pytest.raises(UserError, match=r"groups\[1\]\.tensors must match a trained tensor .*valid: .*0\.Conv2d\.bias"):
        optimizer.check(LAYOUT)
    AdamW(groups=[{"tensors": "1.Dense.*"}]).check(LAYOUT)


def test_optimizer_is_pickled_with_all_its_keys():
    optimizer = pickle.loads(pickle.dumps(LAMB(lr=0.5, clamp=3.0, clip_norm=2.0, groups=[{"tensors": "*"}])))
    assert (optimizer.lr, optimizer.clamp, optimizer.cuts, optimizer.groups) == (
        0.5,
        3.0,
        "nowhere",
        [{"tensors": "*"}],
    )
