"""Ranks that wait for commands (:class:`Pool`), so that one mpirun and its imports serve many tests.

``python -m tests.helpers.pool FOLDER`` is a rank. It reads requests from a FIFO of its own, where it sleeps: in MPI it
would spin.
"""

import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path

from tests.helpers import failures
from tests.helpers.launcher import ROOT, Ended, Mpi

START_S = 120


class Pool:
    """A job of ``n`` ranks that runs the commands it is asked to, one after the other, in the same processes.

    For commands that end by themselves with the same status on every rank. Where one does not end in time, the job is
    killed, and another one is started for the next.
    """

    def __init__(self, mpi: Mpi, n: int, folder: Path):
        self.mpi, self.n, self.folder = mpi, n, folder
        self.job: subprocess.Popen[bytes] | None = None

    def train(self, *argv: object, timeout_s: float = 300) -> Ended:
        """Run ``psframe.train`` on all ranks; the status is -1 where ranks ended with different ones."""
        return self._run("train", argv, timeout_s)

    def bench(self, name: str, *argv: object, timeout_s: float = 300) -> Ended:
        """Run ``psframe.bench NAME`` on all ranks in the same way."""
        return self._run(name, argv, timeout_s)

    def _run(self, name: str, argv: Sequence[object], timeout_s: float) -> Ended:
        if self.job is None or self.job.poll() is not None:
            self._start()
        for ask in self.asks:
            ask.write(json.dumps([name, *map(str, argv)]).encode() + b"\n")
        if not self._come(timeout_s):
            self.close()
            failures.said(-1, "", (self.folder / "launcher").read_text())
            return self._ended(-1, timed_out=True)
        statuses = {(self.folder / f"status-{rank}").read_text() for rank in range(self.n)}
        return self._ended(int(statuses.pop()) if len(statuses) == 1 else -1)

    def close(self) -> None:
        """End the ranks."""
        if self.job:
            for ask in self.asks:
                with suppress(OSError):
                    ask.close()
            os.close(self.done)
            for number in (signal.SIGTERM, signal.SIGKILL):
                with suppress(ProcessLookupError):
                    os.killpg(self.job.pid, number)
                with suppress(subprocess.TimeoutExpired):
                    self.job.wait(timeout=30)
                    break
            self.job = None

    def _start(self) -> None:
        self.close()
        paths = [self.folder / f"ask-{rank}" for rank in range(self.n)]
        for path in (*paths, self.folder / "done"):
            path.unlink(missing_ok=True)
            os.mkfifo(path)
        command = self.mpi.command(self.n, ["-m", "tests.helpers.pool", str(self.folder)])
        self.done = os.open(self.folder / "done", os.O_RDWR)
        with open(self.folder / "launcher", "wb") as said:
            self.job = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )
        self.asks = [open(os.open(path, os.O_RDWR), "wb", buffering=0) for path in paths]  # noqa: SIM115
        assert self._come(START_S), (self.folder / "launcher").read_text()

    def _come(self, timeout_s: float) -> bool:
        """Wait until every rank has said that it is done; return False where one does not, or their job has ended."""
        assert self.job
        ended = os.pidfd_open(self.job.pid)
        try:
            for _ in range(self.n):
                ready = select.select([self.done, ended], [], [], timeout_s)[0]
                if self.done not in ready:
                    return False
                os.read(self.done, 1)
        finally:
            os.close(ended)
        return True

    def _ended(self, status: int, timed_out: bool = False) -> Ended:
        out, err = (
            "".join((self.folder / f"{name}-{rank}").read_text(errors="replace") for rank in range(self.n))
            for name in ("out", "err")
        )
        failures.said(status, out, err)
        return Ended(status, out, err, timed_out)


@contextmanager
def _said_to(folder: Path, rank: int):
    """Let what this process writes go to files of its own."""
    sys.stdout.flush(), sys.stderr.flush()
    kept = [os.dup(fd) for fd in (1, 2)]
    for fd, name in ((1, "out"), (2, "err")):
        file = os.open(folder / f"{name}-{rank}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, fd)
        os.close(file)
    try:
        yield
    finally:
        sys.stdout.flush(), sys.stderr.flush()
        for fd, before in zip((1, 2), kept, strict=True):
            os.dup2(before, fd)
            os.close(before)


def _main(name: str, argv: Sequence[str]) -> int:
    from psframe.cluster.command import run
    from psframe.train.command import main

    if name == "train":
        return main(argv)
    bench = import_module(f"psframe.bench.{name}")
    return run(lambda cluster: bench.main(cluster, argv))


def _rank(folder: Path) -> None:
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    done = os.open(folder / "done", os.O_WRONLY)
    with open(folder / f"ask-{world.rank}") as asks:
        os.write(done, b".")
        for line in asks:
            with _said_to(folder, world.rank):
                try:
                    name, *argv = json.loads(line)
                    status = _main(name, argv)
                except BaseException:
                    traceback.print_exc()
                    status = 1
            (folder / f"status-{world.rank}").write_text(str(status))
            os.write(done, b".")


if __name__ == "__main__":
    _rank(Path(sys.argv[1]))
