"""Sections of a failure's report: the command to run it alone, what it started, its configs, its ranks' last lines."""

import os
import re
import shlex
import sys
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # ranks of Open MPI have no pytest, and their cases import what imports this
    import pytest

#: of the test that runs now: command lines that it started, and what the last jobs over ranks said
COMMANDS: deque[str] = deque(maxlen=12)
SAID: deque[str] = deque(maxlen=2)
LAST_LINES, LONGEST_CONFIG = 30, 2000
#: first line of an error behind its traceback, after the rank that PyTorch puts before it
ERROR = re.compile(r"(\[rank\d+\]: )?[\w.]*(Error|Exception|Interrupt)\b")


def watch() -> None:
    """Take note of every process that is started from now on."""

    def note(event: str, arguments: tuple[object, ...]) -> None:
        if event == "subprocess.Popen":
            words = arguments[1]
            COMMANDS.append(words if isinstance(words, str) else shlex.join(os.fsdecode(word) for word in words))

    sys.addaudithook(note)


def said(status: int, out: str, err: str) -> None:
    """Keep the last lines of a job over ranks, and before them its errors: a launcher's own words may come behind."""
    lines = [f"status {status}"]
    for name, text in (("stdout", out), ("stderr", err)):
        every = text.splitlines()
        lines += [f"{name}: {line}" for line in every[:-LAST_LINES] if ERROR.match(line)][:LAST_LINES]
        lines += [f"{name}: {line}" for line in every[-LAST_LINES:]]
    SAID.append("\n".join(lines))


def forget() -> None:
    """Begin with another test."""
    COMMANDS.clear()
    SAID.clear()


def explain(item: "pytest.Item", report: "pytest.TestReport") -> None:
    """Add to the report of a failed test."""
    suite = [f"--{mark}" for mark in ("full", "soak") if item.get_closest_marker(mark)][-1:]  # or nothing is chosen
    alone = shlex.join(["bash", "launch/test.sh", *suite, item.nodeid])
    report.sections.append(("to run this case alone", alone))
    if COMMANDS:
        report.sections.append(("processes that it started, the last ones", "\n".join(COMMANDS)))
    report.sections.extend(("the last lines of its ranks", text) for text in SAID)
    folder = getattr(item, "funcargs", {}).get("tmp_path")
    for path in sorted(Path(folder).glob("*.yaml"))[:3] if folder else ():
        report.sections.append((f"config {path}", path.read_text(errors="replace")[:LONGEST_CONFIG]))
