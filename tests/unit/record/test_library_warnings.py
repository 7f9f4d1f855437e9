"""What libraries warn of is counted on each rank, and logged once for all."""

import logging
import sys
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe.record import library_warnings, log
from psframe.record.library_warnings import LibraryWarnings


@pytest.fixture
def shown(capsys):
    log._SHOWN.passed.clear()  # other tests' lines are of the same texts
    return lambda: [line.removeprefix("psframe: warning: ") for line in capsys.readouterr().err.splitlines()]


@pytest.fixture
def counted():
    """Return a context's counter; what is left in it is taken."""
    warned = LibraryWarnings()
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with warned:
            yield warned
            warned.take()


def test_warnings_and_lines_of_loggers_are_counted_by_text(counted, shown):
    for number in range(3):
        warnings.warn("a small  number\nof something", RuntimeWarning, stacklevel=1)
        counted.handle(logging.LogRecord("some.library", logging.WARNING, "", 1, "%s", ("slow",), None))
        counted.handle(logging.LogRecord("some.library", logging.WARNING, "", 1, f"number {number}", None, None))
    taken = counted.take()
    (text,) = [text for text in taken if text.startswith("RuntimeWarning: a small number of something (record/test_")]
    assert taken == {text: 3, "some.library: slow": 3, **{f"some.library: number {n}": 1 for n in range(3)}}
    assert not counted.take()
    assert not shown()


def test_logger_that_nobody_has_set_up_is_counted(counted, monkeypatch):
    monkeypatch.setattr(logging.getLogger("a.library"), "propagate", False)  # the test runner has set up the others
    logging.getLogger("a.library").warning("slow")
    logging.getLogger("a.library").info("a detail")
    assert counted.take() == {"a.library: slow": 1}


@pytest.mark.parametrize(
    ("every", "line"),
    [
        ([{"w": 1}], "w"),
        ([{"w": 3}], "w; 3 times"),
        ([{"w": 1}, {"w": 1}], "w; on all 2 ranks"),
        ([{"w": 2}, {"w": 5}], "w; on all 2 ranks, 7 times"),
        ([{}, {}, {"w": 1}], "w; on rank 2"),
        ([{}, {"w": 1}, {"w": 1}], "w; on 2 ranks, the first is 1"),
        ([{}, {"w": 1000}, {"w": 1}, {}], "w; on 2 ranks, the first is 1, 1,001 times"),
    ],
)
def test_line_says_on_how_many_ranks_and_how_often(shown, every, line):
    LibraryWarnings().tell(every)
    assert shown() == [line]


def test_warning_is_logged_once_in_a_job(shown):
    warned = LibraryWarnings()
    warned.tell([{"a": 1}, {"a": 1, "b": 1}])
    warned.tell([{"a": 1}, {"c": 1}])
    assert shown() == ["a; on all 2 ranks", "b; on rank 1", "c; on rank 1"]


def test_many_different_warnings_are_limited(counted, shown):
    for number in range(3 * library_warnings.MOST):
        warnings.warn(f"number {number}", UserWarning, stacklevel=1)
    taken = counted.take()
    assert len(taken) == library_warnings.MOST
    counted.tell([taken])
    lines = shown()
    assert len(lines) == library_warnings.SHOWN + 1
    others = library_warnings.MOST - library_warnings.SHOWN
    assert lines[-1] == f"libraries warned of {others} other things: see log.jsonl"


@pytest.mark.parametrize("leads", [True, False])
def test_what_is_left_at_the_end_is_shown_by_the_rank_that_leads_alone(shown, leads):
    show = warnings.showwarning
    with pytest.raises(OSError, match="ends"), LibraryWarnings() as warned:
        if leads:
            warned.tell([{}])
        warned._note("UserWarning: late")
        raise OSError("it ends")
    assert shown() == ["UserWarning: late"] * leads
    assert warnings.showwarning is show


def test_error_of_a_library_is_shown_at_once_with_its_traceback(counted, shown):
    try:
        raise ValueError("a defect")
    except ValueError:
        exception = sys.exc_info()
    counted.handle(logging.LogRecord("some.library", logging.ERROR, "", 1, "lost", None, exception))
    told = shown()
    assert told[0] == "some.library: lost"
    assert told[-1] == "ValueError: a defect"
    assert not counted.take()


def test_line_of_a_library_that_cannot_be_made_ends_nothing(counted):
    counted.handle(logging.LogRecord("some.library", logging.WARNING, "", 1, "%d", ("many",), None))
    assert not counted.take()


@given(st.lists(st.dictionaries(st.sampled_from("abcd"), st.integers(1, 50)), min_size=1, max_size=5))
def test_every_warning_of_any_rank_is_told(every):
    warned, told = LibraryWarnings(), []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.args[0])
    library_warnings.LOG.addHandler(handler)
    try:
        warned.tell(every)
    finally:
        library_warnings.LOG.removeHandler(handler)
    assert sorted(told) == sorted({text for counts in every for text in counts})
