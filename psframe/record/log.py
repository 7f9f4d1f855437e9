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
from threading import Lock
from typing import Any

from psframe.record.flight import RING
from psframe.record.folder import Folder

LEVELS = ("debug", "info", "warning", "error")
HELP = f"least level of what stderr shows: {', '.join(LEVELS)} (default: warning); log.jsonl has more"
BURST, WINDOW_S = 10, 10.0  # lines of one place in the code within so many seconds
WAITING = 200  # lines that are kept until the run has a folder
PLACES = 1000  # of which lines are counted
LONGEST = 1 << 16  # characters of a line

LOG = logging.getLogger("psframe")


class Limit(logging.Filter):
    """Limit of a handler: passes BURST lines of a place within WINDOW_S.

    The last of them says so, and the next one how many were left out. Errors all pass. A line's place is where it is
    written in the code, or its attribute ``of``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = Lock()
        self._passed: dict[Any, list[float]] = {}  # by place: the window's begin, and lines passed and left out in it

    def filter(self, record: logging.LogRecord) -> bool:
        record.n_more, record.is_last = 0, False  # of this handler, as others may have set them
        if record.levelno >= logging.ERROR:
            return True
        place = getattr(record, "of", (record.pathname, record.lineno))
        with self._lock:
            window = self._passed.setdefault(place, [record.created, 0, 0])
            if record.created - window[0] >= WINDOW_S:
                record.n_more = int(window[2])
                window[:] = record.created, 0, 0
            passes = window[1] < BURST
            window[1 if passes else 2] += 1
            record.is_last = window[1] == BURST
            if len(self._passed) > PLACES:
                self._passed.pop(next(iter(self._passed)))
        return passes


def message(record: logging.LogRecord) -> str:
    """Return what a line says, printable, and how many like it were left out before."""
    text, n_more = record.getMessage()[:LONGEST], getattr(record, "n_more", 0)  # without a limit there is none
    plain = "\n".join(c if c.isprintable() else "".join(map(_escaped, c)) for c in text.split("\n"))
    plain += f" (and {n_more:,} more like it)" if n_more else ""
    return f"{plain} (more like it are left out for {WINDOW_S:g} s)" if getattr(record, "is_last", False) else plain


def _escaped(character: str) -> str:
    return character if character.isprintable() else ascii(character)[1:-1]


class Shown(logging.Handler):
    """Shows lines on stderr; a line with the attribute ``told`` is there already."""

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "told", False):
            return
        rank, _, step = RING.place
        who = f"rank {rank}, step {step}: " if record.levelno < logging.WARNING else ""
        kind = "" if record.levelno > logging.WARNING else f"{record.levelname.lower()}: "
        with suppress(OSError, ValueError):  # stderr may be closed
            sys.stderr.write(f"psframe: {kind}{who}{message(record)}\n")  # in one piece: other ranks write here, too
            sys.stderr.flush()


class Written(logging.Handler):
    """Writes lines as JSON to a file of the run's folder, once it has one."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._waiting: deque[str] = deque(maxlen=WAITING)
        self._place: tuple[Path, str] | None = None

    def wait(self) -> None:
        """Keep lines from here on, until :meth:`open`."""
        self._place = None
        self._waiting.clear()

    def open(self, folder: Path, node: int) -> None:
        """Write to the file of a node in a folder from here on, first what was logged before."""
        self._place = folder, f"log.node-{node}.jsonl" if node else "log.jsonl"
        if lines := "".join(self._waiting):
            self._waiting.clear()
            self._append(*self._place, lines)

    def emit(self, record: logging.LogRecord) -> None:
        rank, epoch, step = RING.place
        facts = {"time": round(record.created, 3), "level": record.levelname.lower(), "rank": rank}
        line = json.dumps(facts | {"epoch": epoch, "step": step, "message": message(record)}) + "\n"
        if self._place:
            self._append(*self._place, line)
        else:
            self._waiting.append(line)

    def _append(self, path: Path, name: str, lines: str) -> None:
        with suppress(OSError), Folder(path) as folder, folder.open(name, "ab") as file:  # a full disk ends no run here
            file.write(lines.encode())


_SHOWN, _WRITTEN = Shown(logging.WARNING), Written()


def level(name: str) -> None:
    """Show lines from a level of LEVELS on; ``debug`` writes those, too."""
    number = int(logging.getLevelName(name.upper()))
    _SHOWN.setLevel(number)
    _WRITTEN.setLevel(min(number, logging.INFO))
    LOG.setLevel(min(number, logging.INFO))


def begin() -> None:
    """Keep this rank's lines for a new run's folder."""
    _WRITTEN.wait()


def write_to(folder: Path, node: int) -> None:
    """Write this rank's lines to a run's folder from here on, in the file of its node."""
    _WRITTEN.open(folder, node)


LOG.propagate = False  # else a root logger's handler would show each line again
for handler in (_SHOWN, _WRITTEN):  # and not the logger, as loggers below it share the handlers alone
    handler.addFilter(Limit())
    LOG.addHandler(handler)
level("warning")
