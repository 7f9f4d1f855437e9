"""Signals that ask a rank to leave: whom they ask, the kernel's alarm behind them, and the handlers at the end."""

import os
import signal
from types import SimpleNamespace

import pytest

from psframe.cluster.signals import LEAVE_S, NUMBERS, REPEATED, Signals


@pytest.fixture(autouse=True)
def handlers():
    """Give a test handlers of its own, since those of a rank that left ignore what comes again; return them."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    own = {number: lambda number, frame: None for number in NUMBERS}
    for number in NUMBERS:
        signal.signal(number, own[number])
    yield own
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def alarms(monkeypatch):
    """Return the seconds to each of the alarms that are set; 0 calls one off."""
    seconds = []
    monkeypatch.setattr(signal, "alarm", seconds.append)
    return seconds


def flag():
    return SimpleNamespace(signal=0)


def current():
    return {number: signal.getsignal(number) for number in NUMBERS}


@pytest.mark.parametrize("number", NUMBERS)
def test_alarm_ends_a_rank_that_was_asked_unless_its_training_is_over_before(alarms, handlers, number):
    halt = flag()
    with Signals(halt, False) as signals:
        signal.raise_signal(number)
        assert (halt.signal, signals.number) == (number, number)
        assert alarms == [LEAVE_S]
        assert signal.getsignal(signal.SIGINT) == signal.SIG_DFL, "Ctrl-C does not end it at once"
        for again in REPEATED:
            signal.raise_signal(again)
        assert (halt.signal, alarms) == (number, [LEAVE_S]), "one that comes again is another one"
    assert alarms[-1] == 0
    assert current() == {**handlers, **dict.fromkeys(REPEATED, signal.SIG_IGN)}


def test_signals_are_handled_as_before_when_nobody_was_asked(alarms, handlers):
    with Signals(flag(), False):
        assert not set(current().values()) & set(handlers.values())
    assert not any(alarms)
    assert current() == handlers


@pytest.mark.parametrize("spared", [True, False])
def test_sigterm_asks_all_ranks_only_if_this_one_cannot_leave_alone(alarms, spared):
    halt, asked = flag(), []
    with Signals(halt, False, leaves=lambda: asked.append(1) or spared):
        signal.raise_signal(signal.SIGTERM)
        assert asked == [1]
        assert (halt.signal, alarms) == ((0, []) if spared else (signal.SIGTERM, [LEAVE_S]))
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_IGN


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_other_signals_let_no_rank_leave_alone(alarms, number):
    halt, asked = flag(), []
    with Signals(halt, False, leaves=lambda: asked.append(1) or True):
        signal.raise_signal(number)
    assert (halt.signal, asked) == (number, [])


@pytest.mark.parametrize("number", NUMBERS)
def test_signal_without_a_flag_is_heeded_by_the_next_one(alarms, number):
    first, then = flag(), flag()
    with Signals(first, False) as signals:
        signals.heed(None)
        signal.raise_signal(number)
        assert (first.signal, alarms) == (0, [LEAVE_S])
        signals.heed(then)
        assert (first.signal, then.signal) == (0, number)


@pytest.mark.parametrize("number", NUMBERS)
def test_process_that_a_rank_has_forked_ends_alone(number):
    """A pool of processes, which a callback may use, ends its own by SIGTERM."""
    halt = SimpleNamespace(signal=0)
    with Signals(halt, True):
        if not (child := os.fork()):
            try:
                signal.raise_signal(number)
            finally:
                os._exit(3)
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == number
    assert halt.signal == 0


def test_rank_whose_words_nobody_reads_leaves_all_the_same(alarms, monkeypatch):
    def refused(*_):
        raise BrokenPipeError

    halt = flag()
    with Signals(halt, True):
        monkeypatch.setattr(os, "write", refused)
        signal.raise_signal(signal.SIGTERM)
    assert halt.signal == signal.SIGTERM
