"""Gates between the ranks of a node, over processes that die or stop."""

import mmap
import os
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from psframe import compiled
from psframe.cluster.gates import COMMITTED, READY, TOGETHER, PeerLost, Rendezvous, size
from tests.helpers.gates import are_told

MEET = "meeting.together()"


@pytest.mark.parametrize("wait", ["auto", "block"])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_writes_before_a_meeting_are_read_after_it(start, n, wait):
    node = start(n, wait)
    node.tell(f"for i in range(300): values[me] = i; {MEET}; assert (values == i).all(); {MEET}", *range(n))
    assert node.answers(*range(n)) == ["passed"] * n


def test_party_is_waited_for_by_who_is_none(start):
    node = start(3)
    node.tell(f"meeting.meet({COMMITTED}, meeting.among((1,)))", 0, 2)
    node.looked(1, 0, 2)
    node.tell(f"meeting.meet({COMMITTED}, meeting.among((1,)), waits=False)", 1)
    assert node.answers(0, 1, 2) == ["passed"] * 3


@pytest.mark.parametrize(("n", "killed"), [(2, [1]), (2, [0]), (3, [0]), (4, [2]), (4, [0, 2])], ids=str)
def test_killed_ranks_are_named(start, n, killed):
    node, left = start(n), [rank for rank in range(n) if rank not in killed]
    node.signal(signal.SIGKILL, *killed)
    node.tell(MEET, *left)
    are_told(node.answers(*left), [10 + rank for rank in killed], "died")


@pytest.mark.parametrize("waiting", [[0, 3], [0, 1, 3]], ids=["at work", "at the gate"])
def test_killed_rank_is_named_while_others_wait(start, waiting):
    node = start(4)
    node.tell(MEET, *waiting)
    node.looked(1, *waiting)
    node.signal(signal.SIGKILL, 1)
    are_told(node.answers(0, 3), [11], "has died")


def test_stopped_rank_is_named_at_the_deadline(start):
    node = start(3, deadline_s=1, looks=0)
    node.signal(signal.SIGSTOP, 0)
    node.tell(MEET, 1, 2)
    node.looked(1, 1, 2)
    node.let()  # both have come: neither is late for the other
    are_told(node.answers(1, 2), [10], "sync.deadline_s", "for 1 s")


def test_stopped_rank_is_named_and_not_who_waits_for_it(start):
    node, ready = start(3, deadline_s=1, looks=0), READY[0]
    node.signal(signal.SIGSTOP, 2)
    node.tell(
        f"meeting.meet({ready}, meeting.everyone, waits=False); meeting.meet({COMMITTED}, meeting.among((1,)))", 0
    )
    node.tell(f"meeting.meet({ready}, meeting.everyone); meeting.meet({COMMITTED}, meeting.among((1,)))", 1)
    node.looked(1, 0, 1)
    node.let()
    are_told(node.answers(0, 1), [12], "sync.deadline_s")


def test_stopped_rank_that_goes_on_in_time_is_waited_for(start):
    node = start(3, deadline_s=60)
    node.signal(signal.SIGSTOP, 2)
    node.tell(MEET, 0, 1, 2)
    node.looked(5, 0, 1)
    node.signal(signal.SIGCONT, 2)
    assert node.answers(0, 1, 2) == ["passed"] * 3


def test_rank_that_passed_may_end_before_others_look(start):
    node = start(3)
    node.tell(MEET, 1)
    node.looked(1, 1)
    node.signal(signal.SIGSTOP, 1)
    node.tell(f"{MEET}; sys.exit()", 0, 2)
    assert [node.ranks[rank].wait(60) for rank in (0, 2)] == [0, 0]
    node.signal(signal.SIGCONT, 1)
    assert node.answers(1) == ["passed"]


@pytest.fixture
def memory():
    fd = os.memfd_create("gates")
    os.ftruncate(fd, size(3))
    yield np.frombuffer(mmap.mmap(fd, 0), np.uint8), fd
    os.close(fd)


def test_rank_that_arrives_and_ends_leaves_nobody_waiting(memory, monkeypatch):
    meeting, other = Rendezvous(*memory, 0, (10, 11)), compiled.sync.Gates(memory[0], 2, 1)
    comes_and_ends = [lambda: other.begin(TOGETHER), lambda: other.arrive(TOGETHER, 2), lambda: [1]]
    monkeypatch.setattr(meeting, "dead", lambda: [act() for act in comes_and_ends][-1])
    meeting.together()
    monkeypatch.setattr(meeting, "dead", lambda: [1])
    with pytest.raises(PeerLost, match="rank 11 has died"):
        meeting.together()


def test_rank_is_named_by_the_number_that_it_had_when_the_job_began(memory, monkeypatch):
    meeting = Rendezvous(memory[0], memory[1], 0, [10, 11])
    meeting.renamed = {10: 3, 11: 4}
    monkeypatch.setattr(meeting, "dead", lambda: [1])
    with pytest.raises(PeerLost, match="rank 4 has died") as lost:
        meeting.together()
    assert (meeting.members, lost.value.ranks) == ((10, 11), (4,))


def test_gate_tells_who_has_not_come(memory):
    gates = [compiled.sync.Gates(memory[0], 3, me) for me in range(3)]
    for me in (0, 2, 1) * 3:
        gates[me].begin(7)
        gates[me].arrive(7, 3)
        assert gates[0].missing(7) == {0: [1, 2], 2: [1], 1: []}[me]
        assert gates[0].wait(7, 0.01) == (me == 1)


@pytest.mark.parametrize("timeout_s", [1e300, float("inf")])
def test_waiter_without_an_end_is_woken(memory, timeout_s):
    counters = compiled.sync.Counters(memory[0], 2)
    assert counters.lock(1, 0)
    came = []
    waiter = threading.Thread(target=lambda: came.extend([counters.wait(0, 1, timeout_s), counters.lock(1, timeout_s)]))
    waiter.start()
    task, seen = Path(f"/proc/self/task/{waiter.native_id}/stat"), ""
    while not seen.endswith("S" * 20):  # it would never, if it did not sleep
        assert len(seen) < 10_000, seen[-100:]
        seen += task.read_text().rpartition(")")[2].split()[0]
        time.sleep(0.001)
    counters.add(0)
    counters.unlock(1)
    waiter.join(60)
    assert came == [True, True]


@pytest.mark.parametrize("timeout_s", [0, -0.7, -1e300, float("-inf"), float("nan")])
def test_wait_of_no_time_is_told_at_once(memory, timeout_s):
    counters, gates = compiled.sync.Counters(memory[0], 2), compiled.sync.Gates(memory[0], 3, 0)
    assert counters.lock(1, timeout_s)
    assert not counters.lock(1, timeout_s)
    assert not counters.wait(0, 1, timeout_s)
    gates.begin(7)
    assert not gates.wait(7, timeout_s)


def test_rank_that_notices_first_speaks_though_others_are_busy(start):
    node = start(3)
    node.signal(signal.SIGKILL, 1)
    node.tell(MEET, 2)
    are_told(node.answers(2), [11], "has died")


def test_rank_that_told_and_left_is_not_taken_for_the_lost_one(start):
    node = start(3)
    node.signal(signal.SIGKILL, 2)
    node.tell(MEET, 1)
    are_told(node.answers(1), [12])
    node.signal(signal.SIGKILL, 1)
    node.tell(MEET, 0)
    ((_, speaks, _),) = node.answers(0)
    assert not speaks


def test_spinning_rank_notices_a_death(start):
    node = start(2, wait="spin")
    node.signal(signal.SIGKILL, 1)
    node.tell(MEET, 0)
    are_told(node.answers(0), [11], "has died")


def test_job_stopped_as_a_whole_has_not_been_late(start):
    node = start(2, deadline_s=1, looks=1)
    node.tell(MEET, 0)
    node.looked(1, 0)
    node.let(2)
    node.signal(signal.SIGSTOP, 0, 1)
    time.sleep(1.5)  # longer than the deadline, of which it has seen a quarter
    node.signal(signal.SIGCONT, 0, 1)
    node.looked(2, 0)
    node.tell(MEET, 1)
    assert node.answers(1) == ["passed"]
    node.let()
    assert node.answers(0) == ["passed"]


def test_rank_that_comes_at_the_last_moment_has_come(memory):
    meeting, other = Rendezvous(*memory, 0, (10, 11)), compiled.sync.Gates(memory[0], 2, 1)
    meeting.configure("block", 0, 2)
    comes = [lambda: other.begin(TOGETHER), lambda: other.arrive(TOGETHER, 2)]
    meeting.dead = lambda: [rank for come in comes if (rank := come())]
    meeting.together()


@pytest.mark.parametrize(("away", "n_looks"), [(False, 2), (True, 2 + 2 + 16)])
def test_rank_that_waits_for_other_nodes_has_a_deadline_of_its_own(memory, away, n_looks):
    """It may have begun to wait when the others had nearly given it up; then it calls these nodes, for twice 2 s."""
    meeting, looks = Rendezvous(*memory, 0, (10, 11)), []
    meeting.configure("block", 0.5, 2)
    meeting.dead, meeting.is_away = list, lambda rank: away

    def wait(seconds):
        looks.extend([seconds] * (seconds > 0))
        return False

    with pytest.raises(PeerLost, match=r"rank 11 did not come to an exchange for 0\.5 s"):
        meeting._watch(wait, lambda: [1])
    assert len(looks) == n_looks
