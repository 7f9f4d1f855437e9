"""Jobs of ranks that hold candidates (:class:`Jobs`): one for each number of ranks, all asleep but the one that trains.

A candidate is held until it is dropped, so that a stretch of it costs its steps alone.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from psframe.cluster import mpirun
from psframe.errors import UserError
from psframe.tune.way import Way

END_S = 10.0  # for ranks to end once their stdin has


class Job:
    """Ranks of ``psframe.tune.ranks`` under a launcher.

    Attributes
    ----------
    numbers : dict of Way to int
        The candidates that it holds.
    """

    def __init__(self, start: Sequence[str], n_ranks: int, arguments: Sequence[str]):
        self.numbers: dict[Way, int] = {}
        self.n_held = 0
        self.errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 closed with the job
        words = [*start, "-n", str(n_ranks), sys.executable, "-m", "psframe.tune.ranks", *arguments]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": self.errors}
        self.process = mpirun.started(words, text=True, errors="replace", **pipes)

    def ask(self, *request: Any) -> dict[str, Any]:
        """Return the reply to a request; UserError if the ranks refuse, and JobEnded if they are gone."""
        assert self.process.stdin
        assert self.process.stdout
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        for line in self.process.stdout:
            if line.startswith("{"):
                reply: dict[str, Any] = json.loads(line)
                if "refused" in reply:
                    raise UserError(reply["refused"])
                return reply
        raise JobEnded(self._complaint())

    def hold(self, way: Way) -> dict[str, Any]:
        """Let the ranks build a candidate; return what they say of it."""
        self.n_held += 1
        reply = self.ask("hold", self.n_held, way.overrides)
        self.numbers[way] = self.n_held
        return reply

    def close(self) -> None:
        """End the ranks."""
        with suppress(BrokenPipeError):
            self.process.stdin.close()  # type: ignore[union-attr]
        try:
            self.process.wait(END_S)
        except BaseException as error:  # they do not leave, or Ctrl-C
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
        finally:
            self.process.stdout.close()  # type: ignore[union-attr]
            self.errors.close()

    def _complaint(self) -> str:
        """Return the ranks' first message, or their launcher's."""
        self.process.wait()
        self.errors.seek(0)
        lines = [line.strip() for line in self.errors if line.strip("- \n")]
        messages = [line.removeprefix("psframe: ") for line in lines if line.startswith("psframe: ")]
        messages = [message for message in messages if not message.startswith("warning: ")]
        return (messages or lines or [f"the ranks have ended with status {self.process.returncode} and no word"])[0]


class JobEnded(UserError):
    """The ranks of a job are gone, with all that they held."""


class Jobs:
    """The jobs of a command, by their number of ranks.

    Parameters
    ----------
    start : sequence of str
        The launcher.
    config : str
        Path of the config.
    overrides : sequence of str
        Of the config, for all candidates.
    """

    def __init__(self, start: Sequence[str], config: str, overrides: Sequence[str] = ()):
        self.start, self.words = start, [config, *overrides]
        self.jobs: dict[int, Job] = {}

    def ask(self, n_ranks: int, *request: Any) -> dict[str, Any]:
        """Return the reply of the job of ``n_ranks`` ranks; raises UserError as :meth:`Job.ask`."""
        job = self.jobs.get(n_ranks) or Job(self.start, n_ranks, self.words)
        self.jobs[n_ranks] = job
        try:
            return job.ask(*request)
        except JobEnded:
            self._end(n_ranks)
            raise

    def hold(self, way: Way) -> dict[str, Any]:
        """Let the ranks build a candidate; alone, if it is refused beside others, for it may not fit beside them."""
        try:
            return self._hold(way)
        except UserError as error:
            others = [n for n, job in self.jobs.items() if job.numbers]
            if isinstance(error, JobEnded) or not others:
                raise
            first = error
        for n_ranks in others:
            self._end(n_ranks)
        try:
            return self._hold(way)
        except UserError:
            raise first from None

    def _hold(self, way: Way) -> dict[str, Any]:
        job = self.jobs.get(way.n_ranks) or Job(self.start, way.n_ranks, self.words)
        self.jobs[way.n_ranks] = job
        try:
            return job.hold(way)
        except JobEnded:
            self._end(way.n_ranks)
            raise

    def of(self, way: Way, *request: Any) -> dict[str, Any]:
        """Return the reply to ``request[0]`` about a candidate, which is built if it is not held."""
        if way not in getattr(self.jobs.get(way.n_ranks), "numbers", ()):
            self.hold(way)
        what, *given = request
        return self.ask(way.n_ranks, what, self.jobs[way.n_ranks].numbers[way], *given)

    def drop(self, ways: Iterable[Way]) -> None:
        """Release candidates; end the jobs that hold none any more."""
        for n_ranks, job in list(self.jobs.items()):
            gone = [way for way in ways if way in job.numbers]
            if len(gone) == len(job.numbers):
                self._end(n_ranks)
            elif gone:
                self.ask(n_ranks, "drop", *(job.numbers.pop(way) for way in gone))

    def close(self) -> None:
        """End all jobs."""
        for n_ranks in list(self.jobs):
            self._end(n_ranks)

    def _end(self, n_ranks: int) -> None:
        self.jobs.pop(n_ranks).close()
