"""Stacks of a process that it writes when it is asked for them, as a rank that a keeper sees."""

import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager, suppress

from psframe.cluster.flight.keeper import WROTE
from psframe.cluster.flight.seen import FIRST, SECOND, Rank, ask_for_stacks
from psframe.record import flight

OPENED = """
import socket, sys, threading, time
from psframe.cluster.flight.recorder import Recorder
recorder = Recorder()
recorder.open(socket.socket(fileno=int(sys.argv[1])), 0)
"""
READS = """
def in_a_call():
    print(flush=True)
    sys.stdin.read()
in_a_call()
"""
COMPUTES = """
sys.setswitchinterval(1e-4)
def calls():
    while True:
        list(map(lambda number: number, range(3)))
for _ in range(3):
    threading.Thread(target=calls, daemon=True).start()
"""
HOLDS = """
import ctypes
print(flush=True)
def keeps():
    mutex = ctypes.create_string_buffer(64)
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)
keeps()
"""
FORKS = """
import os, signal
read, write = os.pipe()
if not os.fork():
    os.kill(os.getpid(), signal.SIGUSR2)
    os.kill(os.getpid(), signal.SIGRTMAX)
    os.write(write, b"lives")
    os._exit(0)
os.wait()
assert os.read(read, 9) == b"lives"
"""


class Seen(Rank):
    """A rank that the test sees, by its socket ``own``."""

    def __init__(self, own, process):
        super().__init__(0, memoryview(bytearray(flight.N_BYTES)))
        data, fds, _, _ = socket.recv_fds(own, 1 << 16, 1)
        _, self.pid, _ = json.loads(data[1:])
        self.own, self.process, self.stacks = own, process, fds[0]
        self.came = []  # signals
        self.n_left = 0  # first signals of which the interpreter has not told yet

    def asked_for(self, seconds=60.0, interprets=True):
        """Ask for its stack; return it, whether it has answered, and the signals that it has heard."""
        self.came.clear()
        ask_for_stacks([self], self.listen, seconds)
        told, came = self.later(), list(self.came)
        while interprets and self.n_left:  # the process was sooner than the interpreter
            self.listen(None)
        self.forget()
        return told["stacks"], told["answered"], came

    def listen(self, seconds):
        self.own.settimeout(seconds)
        with suppress(TimeoutError, BlockingIOError):
            kind = int.from_bytes(self.own.recv(1), "little")
            assert kind, "it has ended"
            if kind == WROTE:
                self.wrote()
                self.n_left -= 1
            else:
                self.came.append(kind)
                self.n_left += kind == FIRST
                assert not self.heard(kind)


@contextmanager
def seen(*parts):
    """Start a process that does ``parts`` once it has a recorder, and ends with its input."""
    own, end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-c", OPENED + "".join(parts), str(end.fileno())]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with own, subprocess.Popen(command, pass_fds=[end.fileno()], **pipes) as process:
        end.close()
        process.stdout.readline()
        try:
            yield Seen(own, process)
            assert process.poll() is None, "it has ended"
        finally:
            process.kill()


def test_stacks_are_of_all_threads_and_the_main_one_is_the_last():
    with seen(COMPUTES, READS) as rank:
        for _ in range(100):
            stacks, answered, heard = rank.asked_for()
            assert answered
            if heard == [FIRST]:  # the interpreter was in time
                break
        *others, main = stacks.split(" (most recent call first):")
        assert "in_a_call" in main
        assert sum("in calls" in other for other in others) == 3


def test_stacks_may_be_asked_for_while_threads_compute():
    """Python reads a stack that changes without a lock otherwise, and may end in a segmentation fault."""
    with seen(COMPUTES, READS) as rank:
        for _ in range(250):
            stacks, answered, _ = rank.asked_for()
            assert answered
            assert "(most recent call first)" in stacks


def test_stack_of_a_call_that_keeps_the_interpreter_is_written_by_the_process():
    with seen(HOLDS) as rank:
        for _ in range(20):  # the call may not have begun yet
            stacks, answered, heard = rank.asked_for(1.0, interprets=False)
            if heard == [FIRST, SECOND]:
                break
        assert answered
        assert heard == [FIRST, SECOND]
        assert "in keeps" in stacks


def test_stack_of_a_process_that_was_stopped_is_of_when_it_is_asked_for():
    with seen(READS) as rank:
        rank.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, rank.pid, os.WSTOPPED)
        stacks, answered, heard = rank.asked_for(seconds=0.2)
        assert (stacks, answered, heard) == ("", False, [])
        rank.process.send_signal(signal.SIGCONT)
        stacks, answered, _ = rank.asked_for()
        assert answered
        assert stacks.count("in in_a_call") == 1


def test_stack_of_a_process_that_answers_late_is_not_that_of_the_next_signal():
    """It was stopped for some incidents, and comes to write a stack when nobody asks for one any more."""
    with seen(READS) as rank:
        rank.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, rank.pid, os.WSTOPPED)
        for _ in range(9):
            assert rank.asked_for(seconds=0.11) == ("", False, [])
        assert rank.owes == {FIRST, SECOND}, "signals of the second kind add up"
        rank.process.send_signal(signal.SIGCONT)
        while rank.owes or rank.n_left:
            rank.listen(None)
        assert rank.later()["stacks"] == ""
        assert rank.asked_for()[0].count("in in_a_call") == 1


def test_stacks_are_not_written_by_a_process_that_a_rank_has_forked():
    with seen(FORKS, READS) as rank:
        assert rank.later()["stacks"] == ""
        stacks, _, _ = rank.asked_for()
        assert stacks.count("in in_a_call") == 1
