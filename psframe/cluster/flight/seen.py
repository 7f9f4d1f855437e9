"""Rank as its keeper sees it (:class:`Rank`): its ring, its process, its stack, and how it ended."""

import os
import signal
import socket
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from psframe.record import flight

STACK_BYTES = 1 << 16  # most that is kept of a rank's stacks
CALL_S = 0.1  # until the interpreter of a rank that was asked for its stack counts as inside a call
#: signals that ask for a stack: the interpreter answers the first one, the process the second
FIRST, SECOND = signal.SIGUSR2, signal.SIGRTMAX


class Rank:
    """A rank as its keeper sees it.

    Attributes
    ----------
    pid : int
        0 where it cannot be seen: containers may have PID namespaces.
    gone_at, ended_at : float or None
        When it said goodbye, and when it ended, by ``time.monotonic``.
    """

    def __init__(self, number: int, memory: memoryview):
        self.number, self.memory = number, memory
        self.sock: socket.socket | None = None  # once it has told which is its own
        self.pid, self.stacks = 0, -1
        self.gone_at: float | None = None
        self.ended_at: float | None = None
        self.ends = False  # True if its process ends with its job
        self.signals, self.leaves = deque[int](maxlen=20), False  # the last ones; True after one that asks to leave
        self.owes = set[int]()  # signals that were sent, and have not come yet
        self.asked = self.answered = False  # for the incident that is written
        self.told_of_stack = False

    @property
    def has_written(self) -> bool:
        """True once its stack is there; what it has told may be of the last one, which came too late."""
        return self.told_of_stack and self.n_written() > 0

    @property
    def is_there(self) -> bool:
        """True of one that handles signals; one that has said goodbye does not any more."""
        return self.pid > 0 and self.stacks >= 0 and not (self.ended_at or self.gone_at)

    def n_written(self) -> int:
        return os.fstat(self.stacks).st_size

    def heard(self, number: int) -> bool:
        """Note that one of the signals that ask for a stack has come; return True if it is not from the keeper."""
        owed = number in self.owes
        self.owes.discard(number)
        if number == FIRST:
            self.answered = self.asked or not owed
        elif self.asked:
            self.answered = self.told_of_stack = True
        else:
            self.forget()
        return number == FIRST and not owed

    def wrote(self) -> None:
        """Note that the interpreter has written its stack: for an incident, or too late for one."""
        self.owes.discard(FIRST)  # it may not have heard of the signal itself, with a socket that is full
        if self.asked or self.answered:
            self.answered = self.told_of_stack = True
        else:
            self.forget()

    def send(self, number: int) -> None:
        """Send a signal to the main thread, unless it owes one."""
        if number in self.owes:  # real-time signals would come as often as they are sent, one within the other
            return
        with suppress(OSError):
            to_thread(self.pid, number)
            self.owes.add(number)

    def read(self, n_events: int) -> flight.Read:
        return flight.read(self.memory, n_events)

    def told(self, n_events: int) -> dict[str, Any]:
        """Return what is known of a rank, as plain values; times in seconds before now."""
        read, now = self.read(n_events), time.monotonic_ns()
        return {
            "rank": self.number,
            "pid": read.header["pid"],
            "in_sight": bool(self.pid),
            **{name: read.header[name] for name in ("state", "step", "epoch")},
            "n_events": read.header["events"],
            "writes_s": _ago(read.header["writes"], now) if read.header["writes"] else None,
            "phases": [[kind, a, b, _ago(began, now)] for kind, a, b, began in read.phases],
            "events": [
                [kind, nested, a, b, _ago(began, now), round((ended - began) / 1e9, 7)]
                for kind, nested, a, b, began, ended in read.events
            ],
        }

    def later(self) -> dict[str, Any]:
        """Return what has become of a rank since then."""
        stacks = b""
        with suppress(OSError):
            if self.stacks >= 0:  # the main thread's is at the end
                stacks = os.pread(self.stacks, STACK_BYTES, max(0, self.n_written() - STACK_BYTES))
        return {
            "ended_s": None if self.ended_at is None else round(time.monotonic() - self.ended_at, 3),
            "said_goodbye": self.gone_at is not None,
            "answered": self.answered,
            "n_events_later": self.read(0).header["events"],
            "signals": list(self.signals),
            "stacks": stacks.decode(errors="replace"),
        }

    def forget(self) -> None:
        """Be ready for the next incident."""
        self.asked = self.answered = self.told_of_stack = False
        with suppress(OSError):
            os.ftruncate(self.stacks, 0)


def ask_for_stacks(ranks: Sequence[Rank], listen: Callable[[float], object], seconds: float) -> None:
    """Let the ranks that run write their Python stacks, and ``listen`` until they have, or for ``seconds``."""
    listen(0.0)  # some may have ended
    asked = [rank for rank in ranks if rank.is_there]
    for rank in asked:
        if not rank.answered:
            rank.forget()
            rank.send(FIRST)
        rank.asked = True
    began = time.monotonic()
    _listen(asked, listen, began + min(CALL_S, seconds))
    for rank in asked:
        if rank.is_there and not rank.n_written():
            rank.send(SECOND)
    _listen(asked, listen, began + seconds)


def _listen(asked: Sequence[Rank], listen: Callable[[float], object], until: float) -> None:
    while any(not rank.has_written and rank.ended_at is None for rank in asked):
        left = until - time.monotonic()
        if left <= 0:
            break
        listen(left)


def to_thread(pid: int, number: int) -> None:
    """Send a signal to a process's main thread, or to any where the C library cannot; OSError if it has ended."""
    import ctypes  # what few keepers need

    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "tgkill"):
        os.kill(pid, number)
    elif libc.tgkill(pid, pid, int(number)):
        raise OSError(ctypes.get_errno(), "tgkill")


def _ago(then_ns: int, now_ns: int) -> float:
    return round((now_ns - then_ns) / 1e9, 6)
