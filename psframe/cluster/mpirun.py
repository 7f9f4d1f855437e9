"""Start of commands over ranks (:func:`command`), one after the other, as a user would start them by mpirun."""

import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from psframe.cluster.parser import counts
from psframe.errors import UserError, reason

LAUNCHED = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK")  # set by launchers in every rank
OF_NODE = ("MPI_LOCALRANKID", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")  # the rank's number on its node
VARIABLE = "PSFRAME_MPIRUN"  # environment variable in place of --mpirun
HELP = "the launcher and its flags, as 'mpirun --oversubscribe' (default: mpirun)"
MAX_RANKS = 1 << 20  # more than any job has had; some launchers misread larger numbers
GRACE_S = 10.0  # seconds for ranks to end when asked to


@dataclass(frozen=True)
class Ended:
    """Result of a command: the output of rank 0, and the error, '' if it succeeded."""

    out: str
    complaint: str


def speaks() -> bool:
    """Return True if this process reports for all ranks of its node: as the first rank there, or as no rank at all.

    For messages without MPI. Each node reports for itself, as another one may have nothing to report.
    """
    return next((os.environ[name] for name in (*OF_NODE, *LAUNCHED) if name in os.environ), "0") == "0"


def refuse_ranks(command: str) -> None:
    """Raise UserError if a command that starts mpirun itself was started by one."""
    for name in LAUNCHED:
        if name in os.environ:
            raise UserError(f"{command} starts mpirun itself, got started under one ({name}); start it alone")


def launcher(given: str | None) -> list[str]:
    """Return the launcher and its flags: as given, beside this Python, or on PATH. Raises UserError if absent."""
    given = given or os.environ.get(VARIABLE)
    if given:
        try:
            return shlex.split(given)
        except ValueError as error:
            raise UserError(f"--mpirun must be a launcher and flags, got {given!r} ({error}); mend it") from None
    beside, on_path = Path(sys.executable).with_name("mpirun"), shutil.which("mpirun")
    path = str(beside) if beside.exists() else on_path
    if not path:
        raise UserError("an mpirun must be on PATH, got none; pip install mpich, or give --mpirun")
    return [path]


def is_openmpi(start: Sequence[str]) -> bool:
    """Return True if a launcher is Open MPI's; no other one accepts its flags."""
    try:
        completed = subprocess.run(
            [start[0], "--version"], capture_output=True, text=True, errors="replace", timeout=GRACE_S
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return "Open MPI" in completed.stdout


def python(start: Sequence[str], n_ranks: int, arguments: Sequence[str]) -> Ended:
    """Run this Python with ``arguments`` on ``n_ranks`` ranks, and wait; see :func:`command`."""
    return command([*start, "-n", str(n_ranks), sys.executable, *arguments])


def command(words: Sequence[str]) -> Ended:
    """Run a command that begins with a launcher, and wait; Ctrl-C ends its ranks, too.

    Raises UserError if the launcher cannot be started.
    """
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL}
    process = started(words, text=True, errors="replace", **pipes)
    try:
        out, err = process.communicate()
    except BaseException:  # Ctrl-C: mpirun ends its ranks, which are in sessions of their own
        _end(process)
        raise
    if not process.returncode:
        return Ended(out, "")
    silent = f"{words[0]} must run what it is given, got exit status {process.returncode} and no word; try it by hand"
    return Ended(out, complaint(err, silent))


def complaint(err: str, silent: str) -> str:
    """Return the first message in what failed ranks wrote, or their launcher's; ``silent`` without any."""
    lines = [line.strip() for line in err.splitlines() if line.strip("- ")]
    messages = [line.removeprefix("psframe: ") for line in lines if line.startswith("psframe: ")]
    messages = [message for message in messages if not message.startswith("warning: ")]
    return (messages or lines or [silent])[0]


def over_ranks(command: str, n_ranks: str, arguments: Sequence[str]) -> list[str]:
    """Return the words that start this Python with ``arguments`` on ``n_ranks`` ranks, as ``-n`` of ``command`` asks.

    Raises UserError for what is no number of ranks, or under a launcher.
    """
    numbers = counts(n_ranks, MAX_RANKS)
    if len(numbers) != 1:
        raise UserError(f"-n must be a number of ranks, got {n_ranks!r}; give {command} -n 4")
    refuse_ranks(f"{command} -n")
    return [*launcher(None), "-n", str(numbers[0]), sys.executable, *arguments]


def become(words: list[str]) -> NoReturn:
    """Replace this process by a command that begins with a launcher. Raises UserError if it cannot be started."""
    sys.stdout.flush()
    try:
        os.execvp(words[0], words)
    except OSError:
        raise UserError(f"a launcher must be a program, got {words[0]!r}; mend {VARIABLE}") from None


def started(words: Sequence[str], **pipes: Any) -> "subprocess.Popen[Any]":
    """Start a launcher in its own session, so that Ctrl-C does not reach it. Raises UserError if it cannot start."""
    try:
        return subprocess.Popen(words, start_new_session=True, **pipes)
    except OSError as error:
        raise UserError(f"--mpirun must be a launcher, got {words[0]!r} ({reason(error)}); give another") from None


def _end(process: "subprocess.Popen[str]") -> None:
    """End a launcher and its processes; kill those left after GRACE_S or a second Ctrl-C."""
    try:
        os.killpg(process.pid, signal.SIGTERM)
        process.communicate(timeout=GRACE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    except ProcessLookupError:
        process.communicate()
