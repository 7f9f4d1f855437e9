"""Keeper of a node's rings (:class:`Keeper`): a process that outlives the ranks, and writes what they did.

The node's first rank starts it, in a session of its own, so that a launcher which kills its ranks does not reach it.
It has a socket to each rank: messages come by it, and its end tells of the rank's. It ends with the last rank.
"""

import json
import mmap
import os
import selectors
import signal
import socket
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from psframe.cluster.flight import machine
from psframe.cluster.flight.disks import Disks
from psframe.cluster.flight.seen import FIRST, SECOND, Rank, ask_for_stacks
from psframe.cluster.output import say_by
from psframe.record import flight

#: first byte of a rank's message; one below it is the number of a signal that the rank has received
STACKS, FACTS, ASK, BYE, WROTE = 128, 129, 130, 131, 132
ENDS = b"process"  #: in a goodbye of a rank whose process ends with its job
SAMPLE_S = 10.0  # between two samples of the machine and the processes
STACK_S = 0.5  # until a rank that was asked for its stack counts as stopped
MESSAGE_BYTES = 1 << 18  # largest message of a rank
MOST = {"asked": 200, "late": 4}  # files of a job, by reason; of all others together:
MOST_FAULTS = 8
QUIET_S = 10.0  # from an incident until another rank's end is one
END_S = 15.0  # least seconds from the last goodbye until ranks that do not end are killed
LOOK_S, WRITE_S = 3.0, 5.0  # until a disk that does not answer is left alone
RATE_S = 0.25  # between two samples that tell what a process does now
LEAVING = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)  #: signals after which a rank's end is no incident


@dataclass
class Order:
    """An incident that is to be written, and the ranks that are told where."""

    reason: str
    rank: int
    message: str
    details: str = ""
    askers: list[Rank] = field(default_factory=list)


class Keeper:
    """Listens to the ranks of a node until they have ended.

    Parameters
    ----------
    fd : int
        Memory of their rings.
    sockets : sequence of int
        Descriptors of the keeper's ends of the ranks' sockets, in any order.
    members : sequence of int
        Numbers in the job of the node's ranks.
    facts : dict
        What is known of the job; ranks add to it.
    """

    def __init__(self, fd: int, sockets: Sequence[int], members: Sequence[int], facts: dict[str, Any]):
        size = flight.N_BYTES
        whole = memoryview(mmap.mmap(fd, size * len(members), prot=mmap.PROT_READ))
        self.ranks = [Rank(number, whole[i * size : (i + 1) * size]) for i, number in enumerate(members)]
        self.facts, self.n_written, self.written_at = facts, Counter[str](), -QUIET_S
        self.held, self.has_ended_them, self.home = -1, False, os.getcwd()
        self.fault: tuple[float, str] = -QUIET_S, ""  # when and where the last one was written
        self.queue: list[Order] = []
        self.order: Order | None = None  # that is being written
        self.space, self.disks = flight.space(), Disks()
        self.samples: list[dict[str, Any]] = []
        self.waiting = selectors.DefaultSelector()
        self.woken, self.waker = socket.socketpair()
        self.waker.setblocking(False)
        signal.set_wakeup_fd(self.waker.fileno(), warn_on_full_buffer=False)
        for sock in (self.woken, *(socket.socket(fileno=descriptor) for descriptor in sockets)):
            sock.setblocking(False)
            self.waiting.register(sock, selectors.EVENT_READ, None)

    def run(self) -> None:
        """Listen until every rank has ended."""
        due = time.monotonic()
        while len(self.waiting.get_map()) > 1:  # there is a rank, besides what wakes it
            self._listen(max(0.0, min(due, self._end_by()) - time.monotonic()))
            self._write_queued()
            if time.monotonic() >= due:
                self._sample()
                due = time.monotonic() + SAMPLE_S
            if time.monotonic() >= self._end_by():
                self._end()

    def _end_by(self) -> float:
        """Return when the ranks must have ended, by ``time.monotonic``: after their goodbyes, if they end with them."""
        gone = [rank.gone_at or rank.ended_at for rank in self.ranks]
        if not all(gone) or self.has_ended_them or not any(rank.ends for rank in self.ranks):
            return float("inf")
        deadline_s = self.facts.get("deadline_s")
        return max(filter(None, gone)) + max(END_S, deadline_s if isinstance(deadline_s, int | float) else 0.0)

    def _end(self) -> None:
        """End ranks that do not end: MPI's own end waits for all, for ever."""
        self.has_ended_them, left = True, [rank for rank in self.ranks if rank.ended_at is None and rank.pid]
        if not left:  # their processes cannot be seen from here
            return
        stopped = [rank for rank in left if machine.process(rank.pid).get("state") in ("T", "t")] or left
        named = f"rank{'s' * (len(stopped) > 1)} {', '.join(str(rank.number) for rank in stopped)}"
        message = f"{named} did not end after the work was done; the job is ended"
        for rank in left:  # the output of this job is theirs
            with suppress(OSError):
                say_by(f"/proc/{rank.pid}/fd/2", f"psframe: {message}\n")
                break
        self.write(Order("end", stopped[0].number, message))
        for rank in left:
            with suppress(OSError):
                if rank.ended_at is None:
                    os.kill(rank.pid, signal.SIGKILL)

    def _listen(self, seconds: float) -> None:
        """Wait for messages, and act on them."""
        for key, _ in self.waiting.select(seconds):
            sock: Any = key.fileobj
            with suppress(BlockingIOError):
                while self._hear(sock):
                    pass

    def _sample(self) -> None:
        """Sample the machine and the ranks' processes; keep the first sample and the last three."""
        self.samples = [*self.samples[:1], *self.samples[1:][-2:], self._now()]

    def _now(self) -> dict[str, Any]:
        processes = {str(rank.number): machine.process(rank.pid) for rank in self.ranks if rank.pid}
        folder = self.folder
        known = self.disks.ask(folder, lambda: machine.machine(folder), None, LOOK_S) or machine.machine("/proc")
        return {"at": time.monotonic(), "machine": known, "processes": processes}

    @property
    def folder(self) -> str:
        """The run's folder, or what is nearest to it."""
        return str(next(filter(self._is_there, (self.facts.get("run"), self.facts.get("dir"))), self.home))

    def _is_there(self, folder: Any) -> bool:
        return bool(folder) and self.disks.ask(folder, lambda: os.path.isdir(folder), False, LOOK_S)

    def _hear(self, sock: socket.socket) -> bool:
        """Act on one message of a socket, or on its end; return False at its end."""
        if sock not in self.waiting.get_map():  # its end was heard while an incident was written
            return False
        rank: Rank | None = self.waiting.get_key(sock).data
        try:
            data, fds, _, _ = socket.recv_fds(sock, MESSAGE_BYTES, 1)
        except ConnectionError:
            data, fds = b"", []
        if sock is self.woken:
            self.queue.append(Order("asked", self.ranks[0].number, "psframe dump has asked for it"))
            return False
        if not data:
            self.waiting.unregister(sock)
            if rank:
                self._ended(rank)
            return False
        with suppress(ValueError, TypeError, LookupError):  # a message that is none, or was cut short
            if data[0] == STACKS:
                self._know(sock, fds, *json.loads(data[1:]))
            elif rank:
                self._act(rank, data[0], data[1:])
        return True

    def _know(self, sock: socket.socket, fds: Sequence[int], number: int, pid: int, space: int) -> None:
        """Know from now on which rank a socket is of."""
        rank = self.ranks[number]
        rank.sock, rank.stacks, rank.pid = sock, fds[0] if fds else -1, pid if space == self.space else 0
        self.waiting.modify(sock, selectors.EVENT_READ, rank)

    def _act(self, rank: Rank, kind: int, content: bytes) -> None:
        if kind == FACTS:
            given = dict(json.loads(content))
            if "left" in given:  # that job goes on without a rank
                self.written_at, self.fault = -QUIET_S, (-QUIET_S, "")
            for name in {"run", "dir"}.intersection(given):
                given[name] = os.path.join(self.home, given[name])  # raises TypeError for what is no path
            self.facts = json.loads(json.dumps(self.facts | given, allow_nan=False))
            self._hold()
        elif kind == BYE:
            rank.gone_at, rank.ends = time.monotonic(), content == ENDS
            if self.held >= 0 and all(each.gone_at or each.ended_at for each in self.ranks):
                os.close(self.held)  # the disk may be unmounted, once the job has ended
                self.held = -1
        elif kind == ASK:
            self._asked(rank, **json.loads(content))
        elif kind == WROTE:
            rank.wrote()
        elif kind in (FIRST, SECOND):
            orders = [order for order in (self.order, *self.queue) if order and order.reason == "asked"]
            if rank.heard(kind) and not orders:  # all ranks may get one
                self.queue.append(Order("asked", rank.number, "a signal, SIGUSR2, has asked for it"))
        else:
            rank.signals.append(kind)
            rank.leaves = rank.leaves or kind in LEAVING

    def _hold(self) -> None:
        """Hold the folder of the run open, by which :mod:`psframe.cluster.flight.presence` finds the job."""
        if "run" in self.facts and self.held < 0 and not any(rank.gone_at for rank in self.ranks):
            run, flags = self.facts["run"], os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC

            def hold() -> None:
                self.held = os.open(run, flags)

            self.disks.ask(run, hold, None, LOOK_S)

    def _asked(self, rank: Rank, reason: str, message: str, details: str) -> None:
        """Let an incident be written for a rank, which is told the path; those that ask at once get one."""
        if reason not in MOST:
            self.written_at = time.monotonic()  # ranks that have ended meanwhile ended by this
        faults = [order for order in (self.order, *self.queue) if order and order.reason not in MOST]
        if faults and reason not in MOST:
            faults[-1].askers.append(rank)
        else:
            self.queue.append(Order(reason, rank.number, message, details, [rank]))

    def _write_queued(self) -> None:
        """Write what has been asked for, one after the other."""
        while self.queue:
            self.order = self.queue.pop(0)
            path = self.write(self.order)
            for each in self.order.askers:
                assert each.sock
                with suppress(OSError):
                    each.sock.send(os.fsencode(path) or b"\0")
            self.order = None

    def _ended(self, rank: Rank) -> None:
        """Note that a rank has ended; write an incident if it had not said goodbye."""
        rank.ended_at = time.monotonic()
        asked = rank.gone_at or rank.leaves
        is_quiet = time.monotonic() - self.written_at < QUIET_S  # others end by what was written
        if is_quiet or asked or "run" not in self.facts or any(other.gone_at for other in self.ranks):
            return
        self.written_at = time.monotonic()
        self.queue.append(Order("death", rank.number, f"rank {rank.number} has ended without a word"))

    def write(self, order: "Order") -> str:
        """Write an incident, once; return its path, "" if there was none, or no disk takes it."""
        reason, (at, path) = order.reason, self.fault
        if reason == "loss" and path and time.monotonic() - at < QUIET_S:
            return path  # a rank was told by MPI of what is written there
        kind = reason if reason in MOST else "fault"  # what a job survives must not hide how it ends
        self.n_written[kind] += 1
        if self.n_written[kind] > MOST.get(kind, MOST_FAULTS):
            return ""
        from psframe.record import incident  # what few jobs need

        first, began = self._now(), time.monotonic()
        ranks = [each.told(incident.events_of(len(self.ranks))) for each in self.ranks]
        if reason != "error":  # all ranks agree on an error, and where they are tells nothing
            ask_for_stacks(self.ranks, self._listen, STACK_S)
            while (left := began + RATE_S - time.monotonic()) > 0:
                self._listen(left)
        last = self._now()
        for each, told in zip(self.ranks, ranks, strict=True):
            told |= each.later()
            each.forget()
        head = {"reason": reason, "rank": order.rank, "message": order.message, "details": order.details}
        head |= {"time": time.time(), "facts": self.facts, "samples": [*self.samples, first, last], "ranks": ranks}
        write = {place: partial(incident.write, [Path(place)], head) for place in self._folders(incident.SPARE)}
        path = next(filter(None, (self.disks.ask(place, put, "", WRITE_S) for place, put in write.items())), "")
        if kind == "fault":  # a disk may take its time for it, in which others end
            self.fault = time.monotonic(), path
            if self.written_at > 0:
                self.written_at = self.fault[0]
        return path

    def _folders(self, spare: Sequence[str]) -> list[str]:
        """Return where an incident may be written: a disk that is full is a reason to write one."""
        known = [self.facts.get("run"), self.facts.get("dir"), self.home, os.environ.get("TMPDIR"), *spare]
        return [folder for folder in dict.fromkeys(known) if folder and self._is_there(folder)]


def main(fd: int, sockets: Sequence[int], members: Sequence[int], facts: dict[str, Any]) -> None:
    """Keep a node's rings until its ranks have ended."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)  # it ends with the ranks
    signal.signal(signal.SIGUSR2, lambda number, frame: None)  # it is heard of by what wakes it
    with suppress(OSError):
        os.nice(10)  # and takes no core from them, and no disk
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    keeper = Keeper(fd, sockets, members, facts)
    os.chdir("/")
    keeper.run()
