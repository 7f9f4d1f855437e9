"""Gates between the ranks of a node, over processes that die or stop."""

import json
import mmap
import os
import select
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from psframe import compiled
from psframe.memory import board
from psframe.memory.gates import COMMITTED, READY, TOGETHER, PeerLost, Rendezvous, size
from tests.launcher import ROOT

RANK = """
import json, mmap, sys
import numpy as np
from psframe.memory.board import Board
from psframe.memory.gates import PeerLost, Rendezvous, size
fd, me, n = map(int, sys.argv[1:4])
memory = np.frombuffer(mmap.mmap(fd, 0), np.uint8)
values = memory[-8 * n :].view(np.int64)
meeting = Rendezvous(memory, fd, me, range(10, 10 + n))
meeting.configure(sys.argv[4], float(sys.argv[5]), n)
board = Board(memory[size(n) :], meeting)
print('"is here"', flush=True)
for line in sys.stdin:
    try:
        exec(line)
        answer = "passed"
    except PeerLost as lost:
        answer = [lost.ranks, lost.speaks, str(lost)]
    print(json.dumps(answer), flush=True)
"""
MEET = "meeting.together()"


class Node:
    """Processes that do as they are told, line by line, and answer when they have."""

    def __init__(self, n, wait="auto", deadline_s=1800):
        fd = os.memfd_create("gates")
        os.ftruncate(fd, size(n) + board.size(n) + 8 * n)
        self.ranks = []
        for me in range(n):
            command = [sys.executable, "-c", RANK, *map(str, (fd, me, n, wait, deadline_s))]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
            self.ranks.append(subprocess.Popen(command, cwd=ROOT, pass_fds=[fd], text=True, **pipes))
        os.close(fd)
        assert self.answers(*range(n)) == ["is here"] * n

    def tell(self, command, *ranks):
        for rank in ranks:
            print(command, file=self.ranks[rank].stdin, flush=True)

    def has_answered(self, rank, timeout_s):
        return bool(select.select([self.ranks[rank].stdout], [], [], timeout_s)[0])

    def answers(self, *ranks):
        return [json.loads(self.ranks[r].stdout.readline()) if self.has_answered(r, 60) else None for r in ranks]

    def signal(self, number, *ranks):
        for rank in ranks:
            self.ranks[rank].send_signal(number)
            if number == signal.SIGKILL:
                self.ranks[rank].wait(60)


@pytest.fixture
def start():
    nodes = []
    yield lambda *arguments, **options: nodes.append(Node(*arguments, **options)) or nodes[-1]
    for process in (process for node in nodes for process in node.ranks):
        process.kill()
        process.communicate()


def are_told(answers, ranks, *words):
    """Check that all who are left end, and that one of them knows whom they lost and is to speak."""
    ((lost, _, text),) = (answer for answer in answers if answer[1])
    assert lost == ranks
    assert all(word in text for word in [*words, *map(str, ranks)]), text


@pytest.mark.parametrize("wait", ["auto", "block"])
@pytest.mark.parametrize("n", [2, 3, 4])
def test_what_a_rank_wrote_before_a_meeting_is_read_after_it(start, n, wait):
    node = start(n, wait)
    node.tell(f"for i in range(300): values[me] = i; {MEET}; assert (values == i).all(); {MEET}", *range(n))
    assert node.answers(*range(n)) == ["passed"] * n


def test_who_is_not_a_party_waits_for_those_who_are(start):
    node = start(3)
    node.tell(f"meeting.meet({COMMITTED}, meeting.among((1,)))", 0, 2)
    assert not node.has_answered(0, 0.6)
    node.tell(f"meeting.meet({COMMITTED}, meeting.among((1,)), waits=False)", 1)
    assert node.answers(0, 1, 2) == ["passed"] * 3


@pytest.mark.parametrize(("n", "killed"), [(2, [1]), (2, [0]), (3, [0]), (4, [2]), (4, [0, 2])], ids=str)
def test_killed_ranks_are_named(start, n, killed):
    node, left = start(n), [rank for rank in range(n) if rank not in killed]
    node.signal(signal.SIGKILL, *killed)
    node.tell(MEET, *left)
    are_told(node.answers(*left), [10 + rank for rank in killed], "died")


@pytest.mark.parametrize("waiting", [[0, 3], [0, 1, 3]], ids=["at work", "at the gate"])
def test_a_rank_that_is_killed_while_others_wait_is_named(start, waiting):
    node = start(4)
    node.tell(MEET, *waiting)
    time.sleep(0.6)  # by now they sleep
    node.signal(signal.SIGKILL, 1)
    are_told(node.answers(0, 3), [11], "has died")


def test_a_rank_that_is_stopped_is_named_at_the_deadline(start):
    node = start(3, deadline_s=1)
    node.signal(signal.SIGSTOP, 0)
    node.tell(MEET, 1, 2)
    are_told(node.answers(1, 2), [10], "sync.deadline_s", "for 1 s")


def test_who_is_waited_for_is_named_and_not_who_waits_for_it(start):
    node, ready = start(3, deadline_s=1), READY[0]
    node.signal(signal.SIGSTOP, 2)
    node.tell(
        f"meeting.meet({ready}, meeting.everyone, waits=False); meeting.meet({COMMITTED}, meeting.among((1,)))", 0
    )
    node.tell(f"meeting.meet({ready}, meeting.everyone); meeting.meet({COMMITTED}, meeting.among((1,)))", 1)
    are_told(node.answers(0, 1), [12], "sync.deadline_s")


def test_a_rank_that_goes_on_before_the_deadline_is_waited_for(start):
    node = start(3, deadline_s=60)
    node.signal(signal.SIGSTOP, 2)
    node.tell(MEET, 0, 1, 2)
    assert not node.has_answered(0, 1.5)
    node.signal(signal.SIGCONT, 2)
    assert node.answers(0, 1, 2) == ["passed"] * 3


def test_who_has_passed_may_end_before_others_have_looked(start):
    node = start(3)
    node.tell(MEET, 1)
    time.sleep(0.6)  # by now it sleeps
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


def test_who_arrives_and_ends_while_it_is_looked_for_has_left_nobody_waiting(memory, monkeypatch):
    meeting, other = Rendezvous(*memory, 0, (10, 11)), compiled.sync.Gates(memory[0], 2, 1)
    comes_and_ends = [lambda: other.begin(TOGETHER), lambda: other.arrive(TOGETHER, 2), lambda: [1]]
    monkeypatch.setattr(meeting, "_dead", lambda: [act() for act in comes_and_ends][-1])
    meeting.together()
    monkeypatch.setattr(meeting, "_dead", lambda: [1])
    with pytest.raises(PeerLost, match="rank 11 has died"):
        meeting.together()


def test_a_gate_tells_who_has_not_come(memory):
    gates = [compiled.sync.Gates(memory[0], 3, me) for me in range(3)]
    for me in (0, 2, 1) * 3:
        gates[me].begin(7)
        gates[me].arrive(7, 3)
        assert gates[0].missing(7) == {0: [1, 2], 2: [1], 1: []}[me]
        assert gates[0].wait(7, 0.01) == (me == 1)


@pytest.mark.parametrize("timeout_s", [1e300, float("inf")])
def test_who_waits_without_an_end_is_woken(memory, timeout_s):
    counters = compiled.sync.Counters(memory[0], 2)
    assert counters.lock(1, 0)
    came = []
    waiter = threading.Thread(target=lambda: came.extend([counters.wait(0, 1, timeout_s), counters.lock(1, timeout_s)]))
    waiter.start()
    time.sleep(0.1)  # by now it sleeps
    used_s = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - used_s < 0.4, "it does not sleep"
    counters.add(0)
    counters.unlock(1)
    waiter.join(60)
    assert came == [True, True]


@pytest.mark.parametrize("timeout_s", [0, -0.7, -1e300, float("-inf"), float("nan")])
def test_who_does_not_wait_is_told_at_once(memory, timeout_s):
    counters, gates = compiled.sync.Counters(memory[0], 2), compiled.sync.Gates(memory[0], 3, 0)
    assert counters.lock(1, timeout_s)
    assert not counters.lock(1, timeout_s)
    assert not counters.wait(0, 1, timeout_s)
    gates.begin(7)
    assert not gates.wait(7, timeout_s)


def test_who_notices_first_speaks_though_others_are_busy(start):
    node = start(3)
    node.signal(signal.SIGKILL, 1)
    node.tell(MEET, 2)
    are_told(node.answers(2), [11], "has died")


def test_who_has_told_and_left_is_not_taken_for_the_one_that_was_lost(start):
    node = start(3)
    node.signal(signal.SIGKILL, 2)
    node.tell(MEET, 1)
    are_told(node.answers(1), [12])
    node.signal(signal.SIGKILL, 1)
    node.tell(MEET, 0)
    ((_, speaks, _),) = node.answers(0)
    assert not speaks


def test_who_spins_notices_a_death_as_soon(start):
    node = start(2, wait="spin")
    node.signal(signal.SIGKILL, 1)
    began = time.monotonic()
    node.tell(MEET, 0)
    are_told(node.answers(0), [11], "has died")
    assert time.monotonic() - began < 20, "far beyond the second that it takes"


def test_a_job_that_was_stopped_as_a_whole_has_not_been_late(start):
    node = start(2, deadline_s=2)
    node.tell(MEET, 0)
    node.tell(f"import time; [time.sleep(0.1) for _ in range(8)]; {MEET}", 1)
    time.sleep(0.3)
    node.signal(signal.SIGSTOP, 0, 1)
    time.sleep(3)
    node.signal(signal.SIGCONT, 0, 1)
    assert node.answers(0, 1) == ["passed", "passed"]


def test_who_comes_at_the_last_moment_has_come(memory):
    meeting, other = Rendezvous(*memory, 0, (10, 11)), compiled.sync.Gates(memory[0], 2, 1)
    meeting.configure("block", 0, 2)
    comes = [lambda: other.begin(TOGETHER), lambda: other.arrive(TOGETHER, 2)]
    meeting._dead = lambda: [rank for come in comes if (rank := come())]
    meeting.together()
