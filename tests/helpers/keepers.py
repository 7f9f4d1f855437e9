"""Ranks of a node that a test plays, and their keeper (:class:`Job`), a process as in a job."""

import fcntl
import json
import mmap
import os
import socket
import subprocess
import sys
import termios
import time

from psframe import compiled
from psframe.cluster.flight.keeper import ASK, FACTS, STACKS
from psframe.cluster.flight.recorder import START
from psframe.record import flight, incident
from tests.helpers.launcher import ROOT

OWN = os.stat("/proc/self/ns/pid").st_ino
#: a process that signals for its stacks do not reach; and one that answers, and asks for incidents by itself
DEAF = """
import signal
signal.signal(signal.SIGUSR2, signal.SIG_IGN)
signal.signal(signal.SIGRTMAX, signal.SIG_IGN)
print(flush=True)
input()
"""
RANK = """
import socket, sys
from psframe.cluster.flight.recorder import Recorder
recorder, said = Recorder(), ""
recorder.open(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))
def waits_for_a_line():
    print(said, flush=True)
    return sys.stdin.readline()
while line := waits_for_a_line():
    said = repr(eval(line))
"""


class Job:
    """Ranks of a node, 10 and above, with their rings and sockets, and their keeper in ``folder``.

    So many numbers of descriptors as are ``spare`` are free below them, as MPI's and files' are when the keeper starts.
    """

    def __init__(self, folder, n=3, spare=0, **facts):
        made = os.memfd_create("psframe")
        self.fd = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, made + spare)
        os.close(made)
        os.ftruncate(self.fd, n * flight.N_BYTES)
        memory, size = memoryview(mmap.mmap(self.fd, 0)), flight.N_BYTES
        self.rings, self.children, self.members = [compiled.flight.Ring() for _ in range(n)], [], [*range(10, 10 + n)]
        for number, ring in enumerate(self.rings):
            ring.move(memory[number * size : (number + 1) * size])
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(n)]
        self.keepers, self.ends = zip(*pairs, strict=True)
        self.folder, self.run, self.facts = folder, folder / "run", {"node": 0, **facts}
        self.run.mkdir()

    def start(self, *told, **settings):
        """Start the keeper as a process; the ranks that it is ``told`` of say who they are, but for their process."""
        before = f"import psframe.cluster.flight.keeper as own; vars(own).update({settings}); main("
        sockets = [end.fileno() for end in self.keepers]
        code = START.format(path=[str(ROOT), *sys.path], given=(self.fd, sockets, self.members, self.facts))
        command = [sys.executable, "-E", "-S", "-c", code.replace("main(", before, 1)]
        self.keeper = self.child(command, pass_fds=(self.fd, *sockets), start_new_session=True, cwd=self.folder)
        self.close(self.keepers)
        for number in told:
            self.tell(number, STACKS, [number, 0, 0])
        return self

    def child(self, command, **options):
        self.children.append(subprocess.Popen(command, **options))
        return self.children[-1]

    def deaf(self, number, **options):
        """Start a process that is a rank, and gives no answer to a signal."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        child = self.child([sys.executable, "-S", "-c", DEAF], **(pipes | options))
        child.stdout.readline()
        socket.send_fds(self.ends[number], [message(STACKS, [number, child.pid, OWN])], [os.memfd_create("psframe")])
        self.heard(number)
        return child

    def rank(self, number):
        """Start a process that is a rank."""
        end, pipes = self.ends[number].fileno(), {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        child = self.child([sys.executable, "-c", RANK, str(end), str(number)], cwd=ROOT, pass_fds=[end], **pipes)
        child.stdout.readline()
        self.heard(number)
        self.close([self.ends[number]])
        return child

    def tell(self, number, kind, content=None):
        self.ends[number].send(message(kind, content))
        self.heard(number)

    def trains(self):
        self.tell(0, FACTS, {"run": str(self.run)})

    def ask(self, *numbers, reason="exception"):
        """Let ranks ask; return what they are told."""
        for number in numbers:
            self.ends[number].send(message(ASK, {"reason": reason, "message": f"by {number}", "details": "why"}))
        return [self.answer(number) for number in numbers]

    def answer(self, number):
        self.ends[number].settimeout(60)
        return self.ends[number].recv(1 << 16).strip(b"\0").decode()

    def heard(self, *numbers):
        """Wait until the keeper has taken all that ranks have told: before what others tell from here on."""
        for number in numbers:
            wait(lambda end=self.ends[number]: fcntl.ioctl(end, termios.TIOCOUTQ, bytes(4)) == bytes(4))

    def end(self, *numbers):
        """End ranks, or all, without a word."""
        self.close([self.ends[number] for number in numbers] if numbers else self.ends)

    def close(self, ends):
        for end in ends:
            end.close()

    def over(self):
        """Wait until the keeper has ended, with its ranks; return the incidents that it has left."""
        self.end()
        assert self.keeper.wait(60) == 0
        return self.found()

    def found(self):
        return [json.loads(path.read_bytes()) for paths in incident.found(self.run) for path in paths]


def message(kind, content=None):
    plain = content if isinstance(content, bytes) else json.dumps(content).encode()
    return bytes([kind]) + (b"" if content is None else plain)


def wait(until):
    end = time.monotonic() + 60
    while not until():
        assert time.monotonic() < end, "there is no answer"
        time.sleep(0.005)
