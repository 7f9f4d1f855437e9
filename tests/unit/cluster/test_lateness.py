"""Seconds of waiting for other nodes, and for late ranks of one's own, by a clock that the tests set."""

import mmap
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mpi4py import MPI

from psframe.cluster import deadline, gates, heartbeat, stragglers
from psframe.cluster.deadline import LONGEST_S, DeadlineWaiter, NodeLost
from psframe.cluster.gates import Rendezvous
from psframe.cluster.heartbeat import ARRIVED, COMPUTING, Pulse
from psframe.cluster.stragglers import MUCH_S, StragglerMonitor

DEADLINE_S, LATE_S, LOOK_S = 5.0, 1.0, 0.25
MEMBERS = (10, 11, 12)  # numbers in the job


@contextmanager
def set_clock():
    """Yield a clock whose ``now`` the test sets, in seconds."""
    clock = SimpleNamespace(now=100.0)
    with pytest.MonkeyPatch.context() as patch:
        for module in (deadline, stragglers):
            patch.setattr(module, "perf_counter", lambda: clock.now)
        patch.setattr(heartbeat, "perf_counter_ns", lambda: int(clock.now * 1e9))
        yield clock


@pytest.fixture
def clock():
    with set_clock() as clock:
        yield clock


def waiter():
    """Return how a rank waits that is alone on the first of two nodes."""
    memory = np.frombuffer(mmap.mmap(-1, gates.size(1)), np.uint8)  # aligned, as gates need it
    meeting = Rendezvous(memory, -1, 0, [0])
    meeting.configure("auto", DEADLINE_S, 1)
    pulse = Pulse(np.zeros(heartbeat.size(1), np.uint8), 1, 0)
    return DeadlineWaiter(meeting, pulse, MPI.COMM_SELF, [0], ["here", "there"])


@given(st.lists(st.sampled_from([0.0, 0.25, 1.0, 1.25, 1000.0]), max_size=20), st.integers(0, 20))
@example([1000.0] * 5, 20)
@example([1000.0] * 6, 20)
def test_wait_for_other_nodes_counts_no_time_in_which_the_job_was_suspended(gaps, n_before):
    """Not more of a gap between two polls than a slow poll takes; and what was before ``begin`` not at all."""
    with set_clock() as clock:
        patience = waiter()
        for gap in gaps[:n_before]:
            clock.now += min(gap, DEADLINE_S / 20)
            patience.look([1])
        patience.begin()
        waited_s = 0.0
        for gap in gaps:
            clock.now += gap
            waited_s += min(gap, LONGEST_S)
            if waited_s > DEADLINE_S:
                with pytest.raises(NodeLost, match=r"node 1 \(there\) did not come .* for 5 s"):
                    patience.look([1])
                return
            patience.look([1])
            assert patience.waited_s == waited_s


def test_rank_is_away_from_its_first_look_until_it_has_done_waiting(clock):
    patience = waiter()
    patience.pulse.tell(COMPUTING, 7)
    said = []
    for step in (patience.begin, lambda: patience.look([1]), lambda: patience.look([1]), patience.begin):
        step()
        said.append((patience.pulse.is_away(0), patience.pulse.look()[1]))
    assert said == [(False, [7]), (True, [7]), (True, [7]), (False, [7])]
    assert patience.pulse.look()[0] == [COMPUTING]


class Late:
    """Ranks of which some come late to a step, and the first one, which watches the others."""

    def __init__(self, clock):
        memory = np.zeros(heartbeat.size(3), np.uint8)
        self.clock, self.pulses = clock, [Pulse(memory, 3, rank) for rank in range(3)]
        self.much: list[str] = []
        self.watch = StragglerMonitor(self.pulses[0], MEMBERS, LATE_S, tell=self.much.append)
        assert self.watch.every_s == LOOK_S

    def step(self, number, late_s):
        """Let all take a step, to which those in ``late_s`` come so many seconds behind the others."""
        for pulse in self.pulses:
            pulse.tell(COMPUTING, number)
        self.pass_by(LOOK_S)
        for rank, pulse in enumerate(self.pulses):
            if rank not in late_s:
                pulse.tell(ARRIVED, number)
        gone_s = 0.0
        for rank, seconds in sorted(late_s.items(), key=lambda one: one[1]):
            self.pass_by(seconds - gone_s)
            gone_s = seconds
            self.pulses[rank].tell(ARRIVED, number)
        self.pass_by(LOOK_S)

    def pass_by(self, seconds):
        for _ in range(round(seconds / LOOK_S)):
            self.clock.now += LOOK_S
            self.watch.look()


def test_stalls_of_a_rank_add_up_until_they_are_taken(clock, capfd):
    late = Late(clock)
    late.step(5, {1: 3.0})
    late.step(6, {1: 0.5, 2: 0.75})  # nobody is named so early
    late.step(7, {2: 1.5})
    late.step(8, {1: 2.0, 2: 4.0})
    assert late.watch.take() == {11: 5.0, 12: 5.5}
    assert late.watch.take() == {}
    late.step(9, {2: 1.25})
    assert late.watch.take() == {12: 1.25}
    steps = [
        line.split("psframe: warning: rank ")[1].split(" in exchange ")[1]
        for line in capfd.readouterr().err.splitlines()
    ]
    assert steps == [f"(step {step}, epoch 0)" for step in (5, 7, 8, 8, 9)]


def test_ranks_of_a_job_that_was_suspended_are_not_late(clock, capfd):
    late = Late(clock)
    for pulse in late.pulses:
        pulse.tell(COMPUTING, 5)
    late.pulses[0].tell(ARRIVED, 5)
    clock.now += 1000.0
    late.watch.look()
    for pulse in late.pulses[1:]:
        pulse.tell(ARRIVED, 5)
    late.watch.look()
    assert late.watch.take() == {}
    assert capfd.readouterr().err == ""


def test_stall_that_lasts_is_told_of_once_with_its_rank(clock):
    late = Late(clock)
    late.step(5, {1: MUCH_S - 1})
    assert late.much == []
    late.step(6, {1: MUCH_S + 5})
    late.step(7, {2: MUCH_S + 1})
    late.step(8, {1: MUCH_S + 1})
    assert [words[: words.index(" is ")] for words in late.much] == ["rank 11", "rank 12", "rank 11"]
    assert [words[-16:] for words in late.much] == [f"(step {step}, epoch 0)"[-16:] for step in (6, 7, 8)]
