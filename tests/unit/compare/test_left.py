"""Time that a comparison has left, by a clock that is replaced: of the runs to come, by those that it has run."""

from types import SimpleNamespace

import pytest

from psframe.record import left as left_


@pytest.fixture
def clock(monkeypatch):
    """Seconds that go on as a test says."""
    now = SimpleNamespace(s=1000.0)
    monkeypatch.setattr(left_, "time", SimpleNamespace(monotonic=lambda: now.s))
    monkeypatch.setattr(left_, "in_terminal", lambda: False)
    return now


@pytest.mark.parametrize(
    ("runs", "told"),
    [
        ([30, 30, 30], ["", "; about 1 min 30 s left", "; about 1 min 0 s left", "; about 30 s left"]),
        ([20, 40, 6], ["", "; about 1 min 0 s left", "; about 1 min 0 s left", "; about 22 s left"]),
        ([0.1, 0.1, 0.1], ["", "; about 0 s left", "; about 0 s left", "; about 0 s left"]),
        ([1300, 1300], ["", "; about 65 min 0 s left", "; about 43 min 20 s left"]),
        (["before", 14, "before"], ["", "", "; about 28 s left", "; about 14 s left"]),
        (["before", "before", "before"], ["", "", "", ""]),
        ([19.8, 19.8], ["", "; about 59 s left", "; about 40 s left"]),
    ],
)
def test_time_left_is_that_of_the_runs_to_come(clock, runs, told):
    """One of four runs; those ``before`` are of an earlier command, and were only looked for, in 5 s."""
    left = left_.Left(4)
    assert left.described() == told[0]
    for run, said in zip(runs, told[1:], strict=True):
        clock.s += 5 if run == "before" else run
        left.passed(run == "before")
        assert left.described() == said
    left.close()


@pytest.mark.parametrize("n_before", [0, 1, 3])
def test_bar_counts_every_run_of_those_there_are(clock, monkeypatch, n_before):
    bar = pytest.importorskip("tqdm", reason="tqdm, which draws bars, is not installed").tqdm
    monkeypatch.setattr(left_, "in_terminal", lambda: True)
    left = left_.Left(3)
    assert isinstance(left.bar, bar)
    for number in range(3):
        assert (left.bar.n, left.bar.total) == (number, 3)
        left.passed(number < n_before)
    assert left.bar.n == 3
    left.close()
    assert left.bar.disable
