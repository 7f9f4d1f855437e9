"""Ring of a rank's phases and events against a list in Python, and what is read of memory that anybody wrote."""

import random
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe import compiled
from psframe.record import flight

Ring, DEEPEST, KEPT, N_BYTES = compiled.flight.Ring, compiled.flight.DEEPEST, compiled.flight.KEPT, flight.N_BYTES
GUARD = 64  # words behind a ring's memory

KINDS = st.integers(1, 0xFFFF)
NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)
CALLS = st.one_of(
    st.tuples(st.just("enter"), KINDS, NUMBERS, NUMBERS),
    st.tuples(st.just("note"), KINDS, NUMBERS, NUMBERS),
    st.tuples(st.just("leave"), st.integers(0, 2 * DEEPEST)),
    st.tuples(st.just("notes"), st.integers(0, KEPT + 10)),
    st.tuples(st.just("move")),
)


class Model:
    """Phases and events as lists, of the same calls as a ring."""

    def __init__(self):
        self.open, self.events = [], []

    def enter(self, *phase):
        self.open.append(phase)
        return len(self.open) - 1

    def note(self, kind, a, b):
        self.events.append((kind, len(self.open), a, b))

    def leave(self, depth):
        while len(self.open) > depth:
            kind, a, b = self.open.pop()
            if len(self.open) < DEEPEST:
                self.events.append((kind, len(self.open), a, b))


def memory():
    """Return memory of a ring, and its guard behind it."""
    words = np.zeros(N_BYTES // 8 + GUARD, np.int64)
    words[-GUARD:] = -7
    return words.view(np.uint8)[: -8 * GUARD], words[-GUARD:]


def moved(ring):
    """Return the memory of a ring, which goes on there."""
    place, _ = memory()
    ring.move(place)
    return place.data


def agrees(ring, model, place, n_events=KEPT):
    """Check what is read of a ring against the model, but for times."""
    read = flight.read(place, n_events)
    assert ring.depth == read.header["depth"] == len(model.open)
    assert read.header["events"] == len(model.events)
    assert [phase[:3] for phase in read.phases] == model.open[:DEEPEST]
    assert [event[:4] for event in read.events] == model.events[-min(n_events, KEPT) :]
    return read


@given(calls=st.lists(CALLS, max_size=30), n_events=st.integers(1, 2 * KEPT))
def test_ring_keeps_the_last_of_any_calls(calls, n_events):
    ring, model, (place, guard), guards = Ring(), Model(), memory(), []
    ring.move(place)
    for name, *given_ in calls:
        if name == "move":
            guards.append(guard)
            place, guard = memory()
            ring.move(place)
        elif name == "notes":
            for number in range(given_[0]):
                ring.note(3, number, -number)
                model.note(3, number, -number)
        else:
            assert getattr(ring, name)(*given_) == getattr(model, name)(*given_)
    agrees(ring, model, place.data, n_events)
    assert all((words == -7).all() for words in [*guards, guard])


@given(st.lists(st.sampled_from(["enter", "note", "leave"]), min_size=1, max_size=60))
def test_ring_has_times_in_order(names):
    ring, before = Ring(), time.monotonic_ns()
    place = moved(ring)
    for name in names:
        getattr(ring, name)(*([max(0, ring.depth - 1)] if name == "leave" else [5]))
    read, after = flight.read(place, KEPT), time.monotonic_ns()
    began = [phase[3] for phase in read.phases]
    ended = [event[5] for event in read.events]
    assert began == sorted(began)
    assert ended == sorted(ended)
    assert all(before <= event[4] <= event[5] <= after for event in read.events)
    assert all(before <= each <= after for each in began)


@pytest.mark.parametrize("n", [KEPT - 1, KEPT, KEPT + 1, 3 * KEPT + 5])
def test_ring_wraps_around(n):
    ring, model = Ring(), Model()
    place = moved(ring)
    for number in range(n):
        ring.note(1 + number % 9, number, number % 7)
        model.note(1 + number % 9, number, number % 7)
    agrees(ring, model, place)
    agrees(ring, model, place, 1)
    assert flight.read(place, 0).events == []


def test_ring_counts_phases_beyond_the_deepest():
    ring, model, (place, guard) = Ring(), Model(), memory()
    ring.move(place)
    for number in range(50 * DEEPEST):
        assert ring.enter(1 + number, number, 2) == model.enter(1 + number, number, 2)
    between = slice(8 * (compiled.flight.FRAMES + DEEPEST * compiled.flight.FRAME), 8 * compiled.flight.RING)
    assert not place[between].any(), "a phase was written behind the last place for one"
    assert flight.read(place.data, KEPT).events == []
    agrees(ring, model, place.data)
    for depth in (DEEPEST + 3, DEEPEST, DEEPEST - 2, 0):
        ring.leave(depth)
        model.leave(depth)
        agrees(ring, model, place.data)
    assert (guard == -7).all()


def test_ring_closes_all_phases_at_once():
    ring = Ring()
    place = moved(ring)
    for kind in (flight.EPOCH, flight.STEP, flight.FORWARD):
        ring.enter(kind, kind)
    ring.leave(0)
    ring.leave(0)
    read = flight.read(place, KEPT)
    assert (ring.depth, read.phases) == (0, [])
    assert [event[:2] for event in read.events] == [(flight.FORWARD, 2), (flight.STEP, 1), (flight.EPOCH, 0)]
    assert len({event[5] for event in read.events}) == 1


def test_ring_moves_with_what_was_noted():
    ring, model = Ring(), Model()
    ring.put(flight.PID, 77)
    ring.put(flight.RANK, 5)
    ring.put(flight.STATE, flight.TRAINS)
    ring.step(3, 41)
    for each in (ring, model):
        each.enter(flight.STEP, 41, 0)
        each.note(flight.STORE, 1, 2)
    first = moved(ring)
    kept = bytes(first)
    second = moved(ring)
    for each in (ring, model):
        each.enter(flight.DATA, 1, 0)
        each.leave(1)
    header = agrees(ring, model, second).header
    assert {name: header[name] for name in ("pid", "rank", "state", "epoch", "step")} == {
        **{"pid": 77, "rank": 5, "state": flight.TRAINS},
        **{"epoch": 3, "step": 41},
    }
    assert bytes(first) == kept, "it goes on in memory that it has left"


@pytest.mark.parametrize(
    ("start", "end"), [(0, 0), (0, N_BYTES - 1), (1, N_BYTES + 1), (4, N_BYTES + 8)], ids=["-", "short", "odd", "half"]
)
def test_ring_refuses_memory(start, end):
    ring, model, place = Ring(), Model(), np.zeros(N_BYTES + 8, np.uint8)[start:end]
    with pytest.raises(ValueError, match="aligned bytes"):
        ring.move(place)
    for each in (ring, model):
        each.note(flight.STORE, 1, 2)
    agrees(ring, model, moved(ring))


@pytest.mark.parametrize("word", [-1, compiled.flight.FRAMES, 1 << 20])
def test_ring_has_no_header_there(word):
    with pytest.raises(IndexError):
        Ring().put(word, 1)


@pytest.fixture
def ring(monkeypatch):
    """The ring of this process, and its memory."""
    monkeypatch.setattr(flight, "RING", Ring())
    return flight.RING, moved(flight.RING)


class Stays(Exception):
    """An error that leaves phases open."""

    stays = True


class Goes(Exception):
    """An error that says that it does not."""

    stays = False


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt, Goes, Stays])
def test_phase_is_open_in_its_context(ring, error):
    now, place = ring
    try:
        with flight.phase(flight.EPOCH, 3), flight.phase(flight.STEP, 41, 2):
            assert [phase[:3] for phase in flight.read(place, 0).phases] == [(flight.EPOCH, 3, 0), (flight.STEP, 41, 2)]
            if error:
                raise error
    except BaseException as raised:
        assert type(raised) is error
    read = flight.read(place, KEPT)
    left = [] if error is Stays else [(flight.STEP, 1, 41, 2), (flight.EPOCH, 0, 3, 0)]
    assert now.depth == (2 if error is Stays else 0)
    assert [event[:4] for event in read.events] == left


@pytest.mark.parametrize("error", [None, ValueError, Stays])
def test_phase_closes_those_that_were_left_open_within(ring, error):
    now, _ = ring
    try:
        with flight.phase(flight.EPOCH):
            now.enter(flight.STEP)
            if error:
                raise error
    except (ValueError, Stays):
        pass
    assert now.depth == (2 if error is Stays else 0)


@pytest.mark.parametrize("error", [None, ValueError, Stays])
def test_phase_is_around_a_function(ring, error):
    now, place = ring

    @flight.in_phase(flight.EVALUATE)
    def evaluate(a, *, b):
        """Has a name."""
        assert flight.read(place, 0).phases[-1][:3] == (flight.EVALUATE, 0, 0)
        if error:
            raise error
        return a + b

    assert (evaluate.__name__, evaluate.__doc__) == ("evaluate", "Has a name.")
    try:
        assert evaluate(1, b=2) == 3
        assert error is None
    except (ValueError, Stays) as raised:
        assert type(raised) is error
    assert now.depth == (error is Stays)
    assert len(flight.read(place, KEPT).events) == (error is not Stays)


def test_kinds_are_distinct_and_have_names():
    kinds = {name: value for name, value in vars(flight).items() if name.isupper() and isinstance(value, int)}
    others = {"N_BYTES", "PID", "RANK", "STATE", "SPACE", "WRITES", "STARTS", "TRAINS", "ENDED", "WAIT", "MPI"}
    kinds = {name: kinds[name] for name in kinds.keys() - others}
    assert len(set(kinds.values())) == len(kinds) > 20
    assert max(kinds.values()) < flight.MPI
    assert set(kinds.values()) | {flight.MPI + number for number in range(len(flight.CALLS))} == set(flight.NAMES)
    assert len(set(flight.NAMES.values())) == len(flight.NAMES) == len(kinds) + len(flight.CALLS)
    assert set(flight.NAMES) >= flight.WAITS >= flight.COLLECTIVES
    assert flight.NAMES[flight.WAIT] == "MPI Request.Wait"
    assert 0 < min(flight.NAMES) <= max(flight.NAMES) <= 0xFFFF


def is_bounded(read, n_events):
    assert len(read.phases) <= DEEPEST
    assert len(read.events) <= min(n_events, KEPT)
    assert all(len(phase) == 4 for phase in read.phases)
    assert all(len(event) == 6 for event in read.events)


def test_read_of_zeros_is_empty():
    read = flight.read(memory()[0].data, KEPT)
    assert set(read.header.values()) == {0}
    assert (read.phases, read.events) == ([], [])


@given(st.binary(max_size=8 * compiled.flight.RING), st.integers(0, 1 << 32), st.integers(0, 3 * KEPT))
def test_read_of_any_bytes_is_bounded(head, seed, n_events):
    rest = random.Random(seed).randbytes(N_BYTES - len(head))
    is_bounded(flight.read(memoryview(head + rest), n_events), n_events)


@given(st.tuples(NUMBERS, NUMBERS), st.integers(0, 3 * KEPT))
def test_read_of_any_counts_is_bounded(counts, n_events):
    words = np.zeros(N_BYTES // 8, np.int64)
    words[[compiled.flight.EVENTS, compiled.flight.DEPTH]] = counts
    read = flight.read(words.view(np.uint8).data, n_events)
    is_bounded(read, n_events)
    assert len(read.phases) == min(max(counts[1], 0), DEEPEST)
    assert len(read.events) == min(max(counts[0], 0), n_events, KEPT)
