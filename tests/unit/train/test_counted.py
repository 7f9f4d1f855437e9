"""Counts of an epoch by ranks before a change, and those of the ranks after it."""

from types import SimpleNamespace

import numpy as np
import pytest

from psframe.train.elastic.counted import Counted
from psframe.train.elastic.remainder import hand_over


def counts(page_moves, late, first=0):
    guarded = {"skipped": [], "repaired": [], "late": dict(late)}
    return Counted(np.full(4, 10), np.full(2, 3), guarded, first, page_moves)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [(None, None, None), ((5, 1), None, (5, 1)), (None, (7, 0), (7, 0)), ((5, 1), (7, 2), (12, 3))],
)
def test_report_has_the_counts_of_all_ranks_before_a_change(before, after, expected):
    report = SimpleNamespace(**vars(counts(after, {2: 0.5}, first=9)))
    counts(before, {2: 1.0, 4: 0.25}, first=4).add_to(report)
    assert report.page_moves == expected
    assert report.moved.tolist() == [20] * 4
    assert report.guarded["late"] == {2: 1.5, 4: 0.25}
    assert report.first_nonfinite_step == 4


def test_nothing_is_handed_over_between_two_epochs():
    """What ranks have counted is in the record of the last one."""
    run = SimpleNamespace(progress=SimpleNamespace(parts=[], counted=None))
    hand_over(run, leaves=False)
    assert run.progress.counted is None
