"""Log of a job (:data:`LOG`): one line a fact, on stderr and in ``log.jsonl`` of the run.

It is Python's own logger ``psframe``. Each rank writes its own lines; those of a node share a file. Warnings and errors
are shown on stderr, facts from ``info`` on are written. :func:`level` shows more, or less.
"""

import json
import logging
import sys
from collections import deque
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import Any

from psframe.record.flight import RANK, RING
from psframe.record.folder import Folder

LEVELS = ("debug", "info", "warning", "error")
HELP = f"least level of what stderr shows: {', '.join(LEVELS)} (default: warning); log.jsonl has more"
BURST, WINDOW_S = 10, 10.0  # lines of one place in the code within so many seconds
WAITING = 500  # lines that are kept until the run has a folder, or its disk answers
PLACES = 1000  # of which lines are counted
LONGEST = 1 << 16  # characters of a line
FLUSH_S = 1.0  # that the end of a rank waits for a disk

LOG = logging.getLogger("psframe")


class Lines(logging.Handler):
    """Handler that takes BURST lines of a place within WINDOW_S, but all errors.

    The last of them says so, and the next one how many were left out. A line's place is where it is written in the
    code, or its attribute ``of``. A line that cannot be made, or put, ends nothing.
    """

    def __init__(self, least: int) -> None:
        super().__init__(least)
        self.passed: dict[Any, list[float]] = {}  # by place: the window's begin, and lines passed and left out in it

    def emit(self, record: logging.LogRecord) -> None:
        try:
            after = self._limited(record)
            if after is not None:
                self.put(record, _text(record) + after)
        except Exception:  # a format that does not fit, or a stderr that is closed
            self.handleError(record)

    def put(self, record: logging.LogRecord, text: str) -> None:
        """Put a line with a text where it belongs."""
        raise NotImplementedError

    def _limited(self, record: logging.LogRecord) -> str | None:
        """Return what to add to a line; None to leave it out."""
        if record.levelno >= logging.ERROR:
            return ""
        window = self.passed.setdefault(getattr(record, "of", (record.pathname, record.lineno)), [record.created, 0, 0])
        if len(self.passed) > PLACES:
            self.passed.pop(next(iter(self.passed)))
        more = ""
        if record.created - window[0] >= WINDOW_S:
            more = f" (and {int(window[2]):,} more like it)" if window[2] else ""
            window[:] = record.created, 0, 0
        passes = window[1] < BURST
        window[1 if passes else 2] += 1
        if window[1] == BURST:
            more += f" (more like it are left out for {WINDOW_S:g} s)"
        return more if passes else None


def _text(record: logging.LogRecord) -> str:
    """Return what a line says, printable, with the traceback of its exception."""
    text = record.getMessage()[:LONGEST]
    if record.exc_info:
        text += "\n" + logging.Formatter().formatException(record.exc_info)[-LONGEST:]
    return "\n".join(line if line.isprintable() else "".join(map(_escaped, line)) for line in text.split("\n"))


def _escaped(character: str) -> str:
    return character if character.isprintable() else ascii(character)[1:-1]


class Shown(Lines):
    """Shows lines on stderr; a line with the attribute ``told`` is there already."""

    def put(self, record: logging.LogRecord, text: str) -> None:
        if getattr(record, "told", False) or sys.stderr is None:
            return
        rank, _, step = RING.place
        who = f"rank {rank}, step {step}: " if record.levelno < logging.WARNING else ""
        ends = record.levelno > logging.WARNING and record.name == LOG.name  # an error of a user's own does not
        kind = "" if ends else f"{record.levelname.lower()}: "
        with suppress(OSError, ValueError):  # it may be closed
            sys.stderr.write(f"psframe: {kind}{who}{text}\n")  # in one piece: other ranks write here, too
            sys.stderr.flush()


class Written(Lines):
    """Writes lines as JSON to a file of the run's folder, once it has one.

    A thread does, as the disk may not answer: no rank waits for it, but for FLUSH_S at its end.
    """

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._lines: deque[str] = deque(maxlen=WAITING)
        self._place: tuple[Path, str] | None = None
        self._due, self._done = Event(), Event()
        self._thread: Thread | None = None

    def wait(self) -> None:
        """Keep lines from here on for another folder."""
        self.drain()
        self._place = None
        self._lines.clear()

    def open(self, folder: Path, node: int) -> None:
        """Write to the file of a node in a folder from here on, first what was logged before."""
        self._place = folder, f"log.node-{node}.jsonl" if node else "log.jsonl"
        self._wake()

    def put(self, record: logging.LogRecord, text: str) -> None:
        rank, epoch, step = RING.place
        facts = {"time": round(record.created, 3), "level": record.levelname.lower(), "rank": rank}
        self._lines.append(json.dumps(facts | {"epoch": epoch, "step": step, "message": text}) + "\n")
        self._wake()

    def drain(self) -> None:
        """Wait until all lines are written, at most FLUSH_S."""
        if self._thread:
            self._done.wait(FLUSH_S)

    def _wake(self) -> None:
        if self._place and self._lines:
            self._done.clear()
            if not self._thread or not self._thread.is_alive():  # the first line, or one of a forked process
                self._thread = Thread(target=self._write, name="psframe-log", daemon=True)
                self._thread.start()
            self._due.set()

    def _write(self) -> None:
        while self._due.wait():
            self._due.clear()
            place, lines = self._place, list[str]()
            with suppress(IndexError):
                while place:
                    lines.append(self._lines.popleft())
            if place and lines:
                with suppress(OSError), Folder(place[0]) as folder, folder.open(place[1], "ab") as file:
                    file.write("".join(lines).encode())  # a full disk ends no run here
            if not self._lines:
                self._done.set()


_SHOWN, _WRITTEN = Shown(logging.WARNING), Written()


def level(name: str) -> None:
    """Show lines from a level of LEVELS on; ``debug`` writes those, too."""
    number = int(logging.getLevelName(name.upper()))
    _SHOWN.setLevel(number)
    _WRITTEN.setLevel(min(number, logging.INFO))
    LOG.setLevel(min(number, logging.INFO))


def begin(rank: int) -> None:
    """Keep lines of this rank for a new run's folder."""
    _WRITTEN.wait()
    RING.put(RANK, rank)
    RING.step(0, 0)


def write_to(folder: Path, node: int) -> None:
    """Write this rank's lines to a run's folder from here on, in the file of its node."""
    _WRITTEN.open(folder, node)


def flush() -> None:
    """Let what was logged be written before this rank ends."""
    _WRITTEN.drain()


LOG.propagate = False  # else a root logger's handler would show each line again
LOG.addHandler(_SHOWN)
LOG.addHandler(_WRITTEN)
level("warning")
