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

END_S = 10.0  # for ranks to end once their stdin has, and again when they are asked to
MOST_HELD = 48  # candidates that a job builds before its ranks are started anew
MEMORY = "memory"  # in a refusal for lack of it


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
                    said, _, table = reply["refused"].partition("\n")
                    raise UserError(said, table)
                return reply
        raise JobEnded(self._complaint())

    def hold(self, way: Way) -> None:
        """Let the ranks build a candidate."""
        self.n_held += 1
        self.ask("hold", self.n_held, way.overrides)
        self.numbers[way] = self.n_held

    def close(self) -> None:
        """End the ranks: by the end of their stdin, then by SIGTERM, then by SIGKILL."""
        with suppress(BrokenPipeError):
            self.process.stdin.close()  # type: ignore[union-attr]
        try:
            for number in (0, signal.SIGTERM, signal.SIGKILL):
                with suppress(subprocess.TimeoutExpired, ProcessLookupError):
                    if number:
                        os.killpg(self.process.pid, number)
                    self.process.wait(END_S)
                    break
        except BaseException:  # Ctrl-C once more
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            raise
        finally:
            self.process.wait()
            self.process.stdout.close()  # type: ignore[union-attr]
            self.errors.close()

    def _complaint(self) -> str:
        """Return the ranks' first message, or their launcher's."""
        self.process.wait()
        self.errors.seek(0)
        silent = f"the ranks have ended with status {self.process.returncode} and no word"
        return mpirun.complaint(self.errors.read(), silent)


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

    def of(self, way: Way, what: str, *given: Any) -> dict[str, Any]:
        """Return the reply to a request about a candidate, which is built if it is not held.

        What is lost with its ranks, or finds no memory beside others, is tried once more, in new ranks and alone.
        UserError if it is refused, or its ranks end again.
        """
        try:
            return self._of(way, what, *given)
        except UserError as error:
            if not isinstance(error, JobEnded) and not (MEMORY in str(error) and self._holds_others(way)):
                raise
        self.close()
        return self._of(way, what, *given)

    def _of(self, way: Way, what: str, *given: Any) -> dict[str, Any]:
        job = self.jobs.get(way.n_ranks)
        if job and way not in job.numbers and job.n_held >= MOST_HELD:
            self._end(way.n_ranks)  # what a dropped candidate leaves in its process is little, but not nothing
            job = None
        if job is None:
            job = self.jobs[way.n_ranks] = Job(self.start, way.n_ranks, self.words)
        try:
            if way not in job.numbers:
                job.hold(way)
                if what == "train":
                    job.ask("train", job.numbers[way], 1)  # warms caches and pages
            return job.ask(what, job.numbers[way], *given)
        except JobEnded:
            self._end(way.n_ranks)
            raise

    def _holds_others(self, way: Way) -> bool:
        return any(other != way for job in self.jobs.values() for other in job.numbers)

    def drop(self, ways: Iterable[Way]) -> None:
        """Release candidates; end the jobs that hold none any more."""
        for n_ranks, job in list(self.jobs.items()):
            gone = [way for way in ways if way in job.numbers]
            if len(gone) == len(job.numbers):
                self._end(n_ranks)
            elif gone:
                try:
                    job.ask("drop", *(job.numbers.pop(way) for way in gone))
                except JobEnded:  # nothing was lost that is not built again
                    self._end(n_ranks)

    def close(self) -> None:
        """End all jobs."""
        for n_ranks in list(self.jobs):
            self._end(n_ranks)

    def _end(self, n_ranks: int) -> None:
        self.jobs.pop(n_ranks).close()
