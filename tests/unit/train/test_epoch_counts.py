"""Counts that begin anew with each epoch: all of what each of them counts is reset, and counted again as before."""

from itertools import count
from operator import attrgetter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe.collectives.buckets import BucketSends, SendTimes
from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena, Layout
from psframe.nn.base import Param
from psframe.optim import SGD, Updater
from psframe.record.clock import CLOCK
from psframe.record.trace import UNTRACED

F = np.float32
LAYOUT = Layout({"0.Dense.weight": Param((5, 3), (0, 1))})


class Plain:
    """SGD as a user's own optimizer."""

    n_state = 0

    def update(self, params, grads, state, lr, step):
        params -= F(lr) * grads


class Done:
    """An exchange that is complete as soon as it is looked at."""

    def Test(self):
        return True

    def Wait(self):
        return None


def updater(optimizer):
    return Updater(optimizer, Arena(LAYOUT, optimizer.n_state, Allocator()))


def updates(update, wild=(3, 4)):
    for step in range(1, 6):
        gradient = np.full(LAYOUT.size, np.nan if step in wild else 1, F)
        update(slice(0, LAYOUT.size), gradient, 0.1, step)
        update.arena.params[:] = 0


def sends(times):
    for number in range(2):
        times.sent(number)
    times.completed(1)
    times.completed(2)
    times.end(CLOCK.now(), UNTRACED)


def bucket_sends():
    return BucketSends([slice(8, 16), slice(0, 8)], lambda number: Done(), lambda request: request.Wait())


def overlaps(sending):
    sending.start_ready(8)
    sending.start_ready(0)
    sending.wait_for(1)
    sending.end(CLOCK.now(), UNTRACED)


#: by name: how it is made, how it is used in an epoch, and what it counts there
COUNTS = {
    "updater": (lambda: updater(SGD(lr=0.1, momentum=0.9)), updates, ("update_s", "traffic", "first_nonfinite_step")),
    "own_updater": (lambda: updater(Plain()), updates, ("update_s", "traffic", "first_nonfinite_step")),
    "send_times": (lambda: SendTimes(2), sends, ("flight_s", "hidden_s")),
    "bucket_sends": (bucket_sends, overlaps, ("times.flight_s", "times.hidden_s")),
}


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Let each look at the clock find it a second later."""
    seconds = count(1)
    monkeypatch.setattr(CLOCK, "now", lambda: float(next(seconds)))


def seen(counter, names):
    """Return what is counted, as text."""
    found = {}
    for name in names:
        value = attrgetter(name)(counter)
        found[name] = repr(value.tolist() if isinstance(value, np.ndarray) else value)
    return found


@pytest.mark.parametrize("name", COUNTS)
def test_clear_resets_all_counts(name):
    make, use, names = COUNTS[name]
    counter = make()
    none = seen(counter, names)
    use(counter)
    once = seen(counter, names)
    assert not [name for name in names if once[name] == none[name]], "all of it is counted"
    counter.clear()
    assert seen(counter, names) == none
    use(counter)
    assert seen(counter, names) == once


@pytest.mark.parametrize("optimizer", [SGD(lr=0.1), Plain()], ids=["compiled", "own"])
@pytest.mark.parametrize(("wild", "first"), [((), 0), ((1,), 1), ((2, 4), 2), ((5,), 5)])
def test_first_step_that_is_not_finite_is_that_of_its_epoch(optimizer, wild, first):
    update = updater(optimizer)
    updates(update, wild=(3,))
    update.clear()
    updates(update, wild)
    assert update.first_nonfinite_step == first


times = st.integers(0, 9)


@given(st.lists(st.tuples(times, times), min_size=1, max_size=4), times)
def test_hidden_seconds_of_an_exchange_are_those_in_which_its_rank_computes(spans, computed_at):
    """Second by second; a bucket without numbers may be complete before it is sent."""
    sending, n_epochs = SendTimes(len(spans)), 2
    sending.sent_at, sending.done_at = map(list, zip(*spans, strict=True))
    for _ in range(n_epochs):
        sending.end(computed_at, UNTRACED)
    seconds = [second for sent, done in spans for second in range(sent, done)]
    assert sending.flight_s == n_epochs * len(seconds)
    assert sending.hidden_s == n_epochs * len([second for second in seconds if second < computed_at])
