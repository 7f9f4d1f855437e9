"""Rank as its keeper sees it (:class:`Rank`): its ring, its process, and how it ended."""

import os
import socket
import time
from collections import deque
from contextlib import suppress
from typing import Any

from psframe.record import flight

STACK_BYTES = 1 << 16  # most that is kept of a rank's stacks


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
        self.owes = self.answered = False  # an answer to SIGUSR2; has given it, for the incident that is written

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
        self.answered = False
        with suppress(OSError):
            os.ftruncate(self.stacks, 0)


def _ago(then_ns: int, now_ns: int) -> float:
    return round((now_ns - then_ns) / 1e9, 6)
