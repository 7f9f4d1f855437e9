"""Mark of a run that a callback has ended (:func:`mark`): it counts as finished before its last epoch."""

import json
from pathlib import Path

from psframe.record import sealed
from psframe.record.folder import Folder

FILE = "stopped.json"


def mark(run: Path, reason: str, epoch: int, step: int) -> None:
    """Note why a run has ended, after ``epoch`` epochs and ``step`` steps. OSError if it cannot be written."""
    sealed.put(run / FILE, json.dumps({"reason": reason, "epoch": epoch, "step": step}) + "\n")


def is_marked(run: Path) -> bool:
    """Return True if a callback has ended the run."""
    with Folder(run) as folder:
        return folder.holds(FILE)


def clear(run: Path) -> None:
    """Take the mark off a run that is continued."""
    with Folder(run) as folder:
        folder.remove(FILE)
