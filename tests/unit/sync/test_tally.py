"""Counts of a mode's operations: what the record says of them, and a new beginning of every count."""

from time import perf_counter

import numpy as np
import pytest

from psframe.record.traffic import Traffic
from psframe.sync.tally import LONGEST, Tally, described, quantile


def counted():
    """Return a tally in which nothing is 0, and the bytes that it counts."""
    tally, traffic = Tally(), Traffic()
    assert tally.moved_by(traffic) is traffic
    traffic.transfer(8)
    for staleness in (0, 2, 2, LONGEST + 7):
        tally.saw(staleness)
    tally.exchanged(1)
    tally.pulled()
    tally.pushed()
    tally.pushed()
    tally.dropped, tally.used = 4, 60
    tally.waited_since(perf_counter() - 5)
    tally.skipped.append({"step": 3, "ranks": [1]})
    return tally, traffic


def test_tally_is_told_in_the_record():
    tally, _ = counted()
    assert tally.last == 1
    assert tally.wait_s >= 5
    assert described(tally.counts() + tally.counts(), 100) == {
        "pulls": 4,
        "pushes": 6,
        "dropped": 8,
        "samples_used": 120,
        "staleness": {"0": 2, "1": 2, "2": 4, str(LONGEST): 2},
        "staleness_p50": 2,
        "staleness_p99": LONGEST,
    }


def test_clear_of_a_tally_begins_every_count_anew():
    (tally, traffic), fresh = counted(), Tally()
    tally.clear()
    for name in ("pulls", "pushes", "dropped", "used", "last", "wait_s", "skipped"):
        assert getattr(tally, name) == getattr(fresh, name), name
    np.testing.assert_array_equal(tally.counts(), 0)
    assert traffic == Traffic()
    assert tally.traffics == [traffic], "it is counted in the next epoch, too"


@pytest.mark.parametrize("n_samples", [0, 100])
def test_record_of_no_counts_has_all_samples_and_no_staleness(n_samples):
    said = described(Tally().counts(), n_samples)
    assert said["samples_used"] == n_samples
    assert (said["staleness"], said["staleness_p50"], said["staleness_p99"]) == ({}, None, None)


@pytest.mark.parametrize(("counts", "share", "value"), [([1, 1], 0.5, 0), ([1, 1], 0.51, 1), ([0, 0, 7], 0.01, 2)])
def test_quantile_is_the_least_value_that_covers_the_share(counts, share, value):
    assert quantile(np.array(counts), share) == value
