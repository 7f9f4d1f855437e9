"""A job that is disturbed: all of its processes are known by a mark in their environment."""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.helpers import live

MARK = "PSFRAME_CHAOS"


class Job:
    """A command over ranks that runs.

    Parameters
    ----------
    command : sequence of str
    config : Path
        By which its ranks train.
    mark : str
        No other job's.
    supervised : bool
        Whether the command is a supervisor, which starts launchers.

    Attributes
    ----------
    hung : bool
        Whether it was waited for in vain.
    """

    def __init__(self, command: Sequence[str], config: Path, mark: str, supervised: bool = False, **env: str):
        self.config, self.mark, self.supervised = config, f"{MARK}={mark}".encode(), supervised
        self.said, self.hung = config.parent / f"stderr-{mark}", False
        with self.said.open("w") as said:
            self.process = live.launch(command, said, **{"PYTHONFAULTHANDLER": "1", MARK: mark, **env})

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def ranks(self) -> list[int]:
        """Return the processes that train, by rank."""
        return live.ranks_of(str(self.config))

    def launcher(self) -> int | None:
        """Return the mpirun's process, where there is one just now."""
        if not self.supervised:
            return None if self.ended else self.process.pid
        try:
            return next((child.pid for child in psutil.Process(self.process.pid).children()), None)
        except psutil.Error:
            return None

    def processes(self) -> list[int]:
        """Return all that the command has started, directly or not, and has not ended."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdecimal() and self.mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue
        return found

    def starts(self, n: int, seconds: float = 60) -> None:
        """Wait until so many ranks are there, or the job has ended."""
        self._until(lambda: len(self.ranks()) >= n, seconds)

    def trains(self, runs: Path, seconds: float = 90) -> None:
        """Wait until an epoch is done, or the job has ended."""
        self._until(lambda: list(runs.glob("*/metrics.jsonl")), seconds)

    def _until(self, comes, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self.ended and not comes() and time.monotonic() < until:
            time.sleep(0.02)

    def wait(self, seconds: float) -> int | None:
        """Return the exit status; None past the time-out, when each rank has said on stderr where it is."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.hung = True
            self._ask()
            return None

    def leaves(self, seconds: float) -> list[str]:
        """Return what has not ended so long after the command; it is told to say where it is, and killed."""
        until = time.monotonic() + seconds
        while (left := self.processes()) and time.monotonic() < until:
            time.sleep(0.05)
        names = [_words(pid) for pid in left]
        if left:
            self._ask()
        self.kill()
        return names

    def _ask(self) -> None:
        for pid in self.ranks():
            send(pid, signal.SIGABRT)  # upon which Python's fault handler tells
            time.sleep(0.1)  # one after the other, so that it can be read
        time.sleep(1)

    def kill(self) -> None:
        """End what is left, and wait for it."""
        for pid in self.processes():
            send(pid, signal.SIGKILL)
        self.process.wait()


def send(pid: int | None, number: int) -> bool:
    """Send a signal; return whether the process was there."""
    try:
        if pid:
            os.kill(pid, number)
        return bool(pid)
    except ProcessLookupError:
        return False


def _words(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:100]
    except OSError:
        return f"process {pid}"
