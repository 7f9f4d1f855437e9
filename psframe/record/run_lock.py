"""Lock of a run's directory (:func:`take`): it has one live run, and names the process and the job of that run."""

import fcntl
import os
from pathlib import Path
from typing import TextIO

from psframe import compiled
from psframe.errors import UserError
from psframe.record.folder import Folder

FILE = "lock"
JOB = "PSFRAME_JOB"  # environment variable of ranks: a word by which their supervisor knows the run that is theirs
MAX_OWNER = 200  # characters of a lock file that are read


def take(path: Path) -> TextIO:
    """Return the locked file, which releases the directory when it is closed; UserError if a live run has it."""
    with Folder(path) as folder:
        lock: TextIO = folder.open(FILE, "a+")
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        owner = _words(lock)[0] or "unknown"
        lock.close()
        raise UserError(
            f"a run directory must have one live run, got {str(path)!r}, in which process {owner} runs; wait for it, "
            "or start a new run with checkpoint.resume=none"
        ) from None
    lock.truncate(0)
    lock.write(f"{os.uname().nodename}:{os.getpid()} {os.environ.get(JOB, '')}".rstrip() + "\n")
    lock.flush()
    return lock


def is_live(path: Path) -> bool:
    """Return True if a run in the folder trains, on a host whose locks this one sees. OSError if there is no run."""
    with Folder(path) as folder, folder.open(FILE) as lock:
        return bool(compiled.sync.is_locked(lock.fileno(), 0))


def job_of(path: Path) -> str:
    """Return the word of the job that had the folder last; '' if it had none, or if there is no lock to read."""
    try:
        with Folder(path) as folder, folder.open(FILE, "r") as lock:
            return _words(lock)[1]
    except (OSError, UnicodeDecodeError):
        return ""


def _words(lock: TextIO) -> tuple[str, str]:
    """Return the process and the job that a lock file names; '' for what is missing."""
    lock.seek(0)
    owner, _, job = lock.readline(MAX_OWNER).strip().partition(" ")
    return owner, job
