"""Keeper of a node's rings as a process, and ranks that ask it, end, or are stuck."""

import fcntl
import json
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import termios
import time

import pytest

from psframe import compiled
from psframe.cluster.flight.keeper import ASK, BYE, FACTS, MOST, STACKS
from psframe.cluster.flight.recorder import START
from psframe.record import flight, incident
from tests.helpers.launcher import ROOT

OWN = os.stat("/proc/self/ns/pid").st_ino
#: a process that a signal for its stacks does not reach; and one that answers it, and asks for incidents by itself
DEAF = "import signal; signal.signal(signal.SIGUSR2, signal.SIG_IGN); print(flush=True); input()"
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
        return [incident.read(path) for paths in incident.found(self.run) for path in paths]


def message(kind, content=None):
    return bytes([kind]) + (b"" if content is None else json.dumps(content).encode())


def wait(until):
    end = time.monotonic() + 60
    while not until():
        assert time.monotonic() < end, "there is no answer"
        time.sleep(0.005)


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Make a job; its processes end with the test."""
    jobs = []
    monkeypatch.chdir(tmp_path)
    yield lambda *arguments, **options: jobs.append(Job(tmp_path, *arguments, **options)) or jobs[-1]
    for made in jobs:
        made.close([*made.ends, *made.keepers])
        os.close(made.fd)
        for child in made.children:
            child.kill()
            child.communicate()


def test_keeper_writes_what_all_ranks_did(job):
    one = job(3, host="h").start(0, 1, 2)
    one.trains()
    one.rings[1].put(flight.STATE, flight.TRAINS)
    one.rings[1].step(2, 40)
    one.rings[1].note(flight.STORE, 5, 6)
    one.rings[1].enter(flight.STEP, 40)
    assert one.ask(2) == [str(one.run / "incident-1.json")]
    (told,) = one.found()
    assert [told[key] for key in ("reason", "rank", "message", "details")] == ["exception", 12, "by 2", "why"]
    assert told["facts"] == {"node": 0, "host": "h", "run": str(one.run)}
    assert [rank["rank"] for rank in told["ranks"]] == [10, 11, 12]
    rank = told["ranks"][1]
    assert [rank[key] for key in ("state", "step", "epoch", "n_events")] == [flight.TRAINS, 40, 2, 1]
    assert [phase[:3] for phase in rank["phases"]] == [[flight.STEP, 40, 0]]
    assert [event[:4] for event in rank["events"]] == [[flight.STORE, 0, 5, 6]]
    assert (rank["ended_s"], rank["said_goodbye"], rank["answered"], rank["stacks"]) == (None, False, False, "")
    assert len(told["samples"]) >= 2
    assert all(sample["machine"] for sample in told["samples"])


def test_keeper_answers_who_asks_at_once_with_one_file(job):
    one = job(3).start(0, 1)
    one.trains()
    one.deaf(2)
    one.keeper.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, one.keeper.pid, os.WSTOPPED)
    for number in (0, 1):
        one.ends[number].send(message(ASK, {"reason": "exception", "message": "", "details": ""}))
    one.keeper.send_signal(signal.SIGCONT)
    assert [one.answer(0), one.answer(1)] == [str(one.run / "incident-1.json")] * 2
    assert one.ask(0) == [str(one.run / "incident-2.json")]


@pytest.mark.parametrize("dead", [0, 2])
def test_keeper_names_a_rank_that_ends_without_a_word(job, dead):
    one = job(3).start(0, 1, 2)
    one.trains()
    one.end(dead)
    wait(one.found)
    (told,) = one.over()  # the others end by that one
    assert (told["reason"], told["rank"]) == ("death", 10 + dead)
    assert f"rank {10 + dead} " in told["message"]
    assert [rank["ended_s"] is None for rank in told["ranks"]] == [number != dead for number in range(3)]


def test_keeper_tells_the_signals_of_a_rank_that_has_ended(job):
    one = job(2).start(0, 1)
    one.trains()
    one.tell(1, signal.SIGWINCH)
    one.end(1)
    wait(one.found)
    assert one.found()[0]["ranks"][1]["signals"] == [signal.SIGWINCH]


@pytest.mark.parametrize(
    "told", [(1, BYE), (0, BYE), (1, signal.SIGTERM), (1, signal.SIGINT), (1, signal.SIGUSR1)], ids=str
)
def test_keeper_is_silent_about_an_end_in_good_order(job, told):
    one = job(3).start(0, 1, 2)
    one.trains()
    one.tell(*told)
    one.end(1)
    assert one.ask(2, reason="error") == [str(one.run / "incident-1.json")]
    assert [each["reason"] for each in one.over()] == ["error"]


def test_keeper_is_silent_before_a_run_has_a_folder(job):
    one = job(2).start(0, 1)
    one.tell(0, FACTS, {"dir": str(one.run)})
    one.end(1)
    assert one.over() == []
    assert os.listdir(one.folder) == ["run"]


def test_keeper_is_silent_about_a_rank_that_it_has_not_heard_of(job):
    one = job(2).start(0)
    one.trains()
    one.end(1)
    one.tell(0, BYE)
    assert one.over() == []


def test_keeper_writes_a_few_incidents_at_most(job):
    one = job(1).start(0)
    one.trains()
    paths = [one.ask(0, reason="error")[0] for _ in range(MOST + 2)]
    assert paths == [*(str(one.run / f"incident-{number}.json") for number in range(1, MOST + 1)), "", ""]
    assert len(one.over()) == MOST


def test_keeper_ends_with_the_last_rank_and_by_no_signal(job):
    one = job(2).start(0, 1)
    one.trains()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2):
        one.keeper.send_signal(number)
    assert one.ask(0) == [str(one.run / "incident-1.json")]
    one.tell(0, BYE)
    one.end(0)
    assert one.ask(1, reason="error") == [str(one.run / "incident-2.json")]
    assert len(one.over()) == 2


@pytest.mark.parametrize("has_dir", [True, False])
def test_keeper_writes_elsewhere_what_the_run_s_folder_does_not_take(job, has_dir):
    one = job(1).start(0)
    one.trains()
    (one.folder / "dir").mkdir()
    if has_dir:
        one.tell(0, FACTS, {"dir": str(one.folder / "dir")})
    (one.run / "incident-1.json.part").mkdir()
    one.ask(0, reason="error")
    (one.run / "incident-1.json.part").rmdir()
    one.run.rmdir()
    one.ask(0)
    place = one.folder / "dir" if has_dir else one.folder
    assert {"incident-1.json", "incident-2.json"} <= {*os.listdir(place)}


def test_keeper_goes_on_while_no_disk_takes_an_incident(job):
    one = job(1).start(0)
    one.trains()
    most = resource.prlimit(one.keeper.pid, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    assert one.ask(0) == [""]
    assert os.listdir(one.run) == []
    resource.prlimit(one.keeper.pid, resource.RLIMIT_FSIZE, most)
    assert one.ask(0) == [str(one.run / "incident-1.json")]


GARBAGE = {
    STACKS: [b"", b"{", b"[9, 0, 0]", b"[1]", b"5", b'["x", 0, 0]'],
    FACTS: [b"", b"\xff", b"[1]", b'{"run": 5}', b'{"run": "a\\u0000"}', b'{"x": NaN}', b'{"x": "' + b"x" * 70_000],
    ASK: [b"", b"{}", b"[]", b'{"reason": "x", "more": 1}'],
    255: [b"", b"{}"],
}


@pytest.mark.parametrize(("kind", "content"), [(kind, each) for kind, all_of in GARBAGE.items() for each in all_of])
def test_keeper_outlives_a_message_that_is_none(job, kind, content):
    one = job(2).start(0, 1)
    one.ends[1].send(bytes([kind]) + content)
    one.trains()
    assert one.ask(0, reason="error") == [str(one.run / "incident-1.json")]
