"""A trace's file is whole however a run ends, and its events are what the ranks kept."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from psframe.record.trace import FILE, Trace, append

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


def test_a_later_epoch_stands_on_the_same_clock(tmp_path):
    append(tmp_path, RANKS)
    append(tmp_path, [([("later", 0, 20.0, 21.0)], [])])
    (later,) = (e for e in events(tmp_path) if e["name"] == "later")
    assert later["ts"] == pytest.approx(10e6, abs=2e5)  # the clocks of time and perf_counter drift apart by little


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 2000))
def test_a_file_that_was_cut_short_is_continued_whole(tmp_path_factory, cut):
    run = tmp_path_factory.mktemp("cut")
    append(run, RANKS)
    append(run, RANKS)
    whole = (run / FILE).read_bytes()
    (run / FILE).write_bytes(whole[: max(0, len(whole) - cut)])
    append(run, [([("later", 0, 20.0, 21.0)], [])])
    found = events(run)
    assert [e for e in found if e["name"] == "later"]
    assert all("ph" in e for e in found)


def test_so_many_turns_are_kept_of_each_epoch():
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
