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
        self.signals, self.leaves = deque[int](maxlen=20), False  # the last ones; True after one that asks to leave
        self.owes = False  # an answer to the first signal
        self.asked = self.answered = False  # for the incident that is written
        self.told_of_stack = False

    @property
    def has_written(self) -> bool:
        """True once its stack is there; what it has told may be of the last one, which came too late."""
        return self.told_of_stack and os.fstat(self.stacks).st_size > 0

    def heard(self, number: int) -> bool:
        """Note that one of the signals that ask for a stack has come; return True if it is not from the keeper."""
        if number == SECOND:
            self.answered = self.told_of_stack = self.asked
            return False
        owed, self.owes = self.owes, False
        self.answered = self.asked or not owed
        return not owed

    def signal(self, number: int) -> bool:
        """Send a signal; return False if the process has ended."""
        with suppress(OSError):
            os.kill(self.pid, number)
            return True
        return False

    def read(self, n_events: int) -> flight.Read:
        return flight.read(self.memory, n_events)

    def told(self, n_events: int) -> dict[str, Any]:
        """Return what is known of a rank, as plain values; times in seconds before now."""
        read, now = self.read(n_events), time.monotonic_ns()
        return {
            "rank": self.number,
            "pid": read.header["pid"],
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
            stacks = os.pread(self.stacks, STACK_BYTES, 0) if self.stacks >= 0 else b""
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
    # one that has said goodbye handles no signals any more
    asked = [each for each in ranks if not (each.ended_at or each.gone_at) and each.pid and each.stacks >= 0]
    for rank in asked:
        if not rank.answered:
            rank.forget()  # it may have answered the last one too late
            rank.owes = rank.owes or rank.signal(FIRST)  # one that has not come yet is not sent twice
        rank.asked = True
    began = time.monotonic()
    _listen(asked, listen, began + min(CALL_S, seconds))
    for rank in asked:
        if not rank.has_written:
            rank.signal(SECOND)
    _listen(asked, listen, began + seconds)


def _listen(asked: Sequence[Rank], listen: Callable[[float], object], until: float) -> None:
    while any(not rank.has_written and rank.ended_at is None for rank in asked):
        left = until - time.monotonic()
        if left <= 0:
            break
        listen(left)


def _ago(then_ns: int, now_ns: int) -> float:
    return round((now_ns - then_ns) / 1e9, 6)
