"""A trace's file is whole however a run ends, and its events are what the ranks kept."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframe.memory.audit import Pages
from psframe.nn.metrics.meter import Sums
from psframe.record import trace
from psframe.record.clock import CLOCK
from psframe.record.trace import FILE, Trace, append
from psframe.train.epoch_metrics import EpochTimings, Report, trace_waiting

RANKS = [([("data", 0, 10.0, 10.5), ("exchange", 2, 10.1, 10.7)], [(10.9, {"staleness": 3})]), ([], [])]


def events(run):
    return json.loads((run / FILE).read_text())["traceEvents"]


def test_events_are_what_was_kept_in_microseconds(tmp_path):
    append(tmp_path, RANKS)
    spans = [e for e in events(tmp_path) if e["ph"] == "X"]
    assert [(e["name"], e["pid"], e["tid"], round(e["ts"]), round(e["dur"])) for e in spans] == [
        ("data", 0, 0, 0, 500_000),
        ("exchange", 0, 2, 100_000, 600_000),
    ]
    (count,) = (e for e in events(tmp_path) if e["ph"] == "C")
    assert (count["args"], round(count["ts"])) == ({"staleness": 3}, 900_000)
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events(tmp_path) if e["ph"] == "M"}
    assert names[0, 2] == "bucket 1"


def test_later_epoch_stands_on_the_same_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(CLOCK, "now", lambda: 30.0)
    monkeypatch.setattr(trace.time, "time", lambda: 1e9)
    append(tmp_path, RANKS)
    append(tmp_path, [([("later", 0, 20.0, 21.0)], [])])
    (later,) = (e for e in events(tmp_path) if e["name"] == "later")
    assert later["ts"] == pytest.approx(10e6, abs=1)


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 2000))
def test_file_that_was_cut_short_is_continued_whole(tmp_path_factory, cut):
    run = tmp_path_factory.mktemp("cut")
    append(run, RANKS)
    append(run, RANKS)
    whole = (run / FILE).read_bytes()
    (run / FILE).write_bytes(whole[: max(0, len(whole) - cut)])
    append(run, [([("later", 0, 20.0, 21.0)], [])])
    found = events(run)
    assert [e for e in found if e["name"] == "later"]
    assert all("ph" in e for e in found)


def test_turns_are_kept_so_many_of_each_epoch():
    trace = Trace(2)
    assert not trace.on
    for _ in range(2):
        trace.begin()
        for turn in range(3):
            assert trace.on == (turn < 2)
            if trace.on:
                trace.turn(1.0, 2.0, 3.0, {"bytes": turn})
        trace.end()
        spans, counts = trace.take(5.0)
        assert len(spans) == 6
        assert spans[0] == ("data", 0, 6.0, 7.0)
        assert [numbers for _, numbers in counts] == [{"bytes": 0}, {"bytes": 1}]
    assert trace.take() == ([], [])


def test_span_ends_where_the_next_one_begins_to_the_nanosecond(tmp_path):
    at = [10 + 100.3e-9 * i for i in range(1000)]
    append(tmp_path, [([("data", 0, *ends) for ends in itertools.pairwise(at)], [])])
    spans = [(round(e["ts"] * 1000), round(e["dur"] * 1000)) for e in events(tmp_path) if e["ph"] == "X"]
    assert len(spans) == 999
    for (begins, lasts), (following, _) in itertools.pairwise(spans):
        assert begins + lasts == following


def test_times_are_never_negative_and_what_is_around_comes_first(tmp_path):
    for run in range(30):
        (tmp_path / str(run)).mkdir()
        first = 123.456789123 + run / 7
        spans = [("wait", 0, first, first + 1), ("data", 0, first, first), ("exchange", 0, first, first + 2)]
        append(tmp_path / str(run), [(spans, [])])
        found = [e for e in events(tmp_path / str(run)) if e["ph"] == "X"]
        assert [e["name"] for e in found] == ["exchange", "wait"], "a span of no length was written, or out of order"
        assert found[0]["ts"] >= 0


def report(exchanging, spans):
    """A rank that came to its exchanges at these times, a second each."""
    times = np.array([(at - 2, at - 1, at) for at in exchanging])
    met, nothing = np.ones(len(times), bool), np.zeros((1, 1))
    seen = EpochTimings(times[0, 0], times[-1, 2] + 1, times, met, nothing, np.zeros(1, int), np.zeros(1))
    spans = [*spans, *(("exchange", 0, at, at + 1) for at in exchanging)]
    no = np.zeros(3, int)
    tested = (nothing, Sums(), 0.0)
    return Report(seen, 0, 0.0, no, 0.0, (0.0, 0.0), 0.0, 0, {}, no, *tested, {"data": Pages()}, None, (spans, []), [])


def test_wait_for_the_last_rank_is_where_nothing_else_is_done():
    first = report([3.0, 7.0], [("update", 0, 3.25, 3.5), ("update", 0, 3.625, 4.0), ("exchange", 1, 3.0, 3.75)])
    trace_waiting([first, report([3.75, 9.0], [])])
    waits = [span[2:] for span in first.traced[0] if span[0] == "wait"]
    # 8.0: an exchange that ends before the last rank came to it, as the clocks of two nodes may have it
    assert waits == [(3.0, 3.25), (3.5, 3.625), (7.0, 8.0)]
