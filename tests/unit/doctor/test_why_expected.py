"""Epochs against what a model expects of them."""

import pytest

from psframe.doctor.why.expected import PARTS, Comparison

PART = dict(zip(("compute", "wait", "exchange"), PARTS, strict=True))


def compared(measured, expected):
    """Return a comparison of seconds of compute, wait and exchange."""
    parts = dict(zip(PARTS, zip(measured, expected, strict=True), strict=True))
    return Comparison("a machine", sum(measured), sum(expected), parts)


@pytest.mark.parametrize("measured", [(2.0, 0.5, 1.0), (1.5, 0.0, 0.5), (3.0, 0.9, 1.2)])
def test_epoch_that_takes_about_as_long_has_no_cause(measured):
    found = compared(measured, (2.0, 0.5, 1.0))
    assert found.cause is None
    assert str(found) == f"an epoch takes {sum(measured):.3g} s, and the model of a machine expects 3.5 s"


@pytest.mark.parametrize(
    ("measured", "part"),
    [((9.0, 0.5, 1.0), "compute"), ((2.0, 6.0, 2.0), "wait"), ((2.5, 0.0, 8.0), "exchange"), ((4.0, 3.0, 2.0), "wait")],
)
def test_part_that_takes_longest_beyond_what_is_expected_is_named(measured, part):
    cause = compared(measured, (2.0, 0.5, 1.0)).cause
    name = PART[part]
    took, should = dict(zip(PART, zip(measured, (2.0, 0.5, 1.0), strict=True), strict=True))[part]
    assert cause.sentence.endswith(f"most of the difference is in {name}, {took:.3g} s in place of {should:.3g} s.")
    assert cause.advice == PARTS[name][2]
    assert len(cause.evidence) == len(PARTS)
