"""Messages on an interrupted run (:func:`of_left`): its directory, and how to continue it, if possible."""

from pathlib import Path

from psframe.record import checkpoint

AUTO = "checkpoint.resume=auto"
NONE = "it has no checkpoint to continue from, so start anew with checkpoint.resume=none"


def of_running(path: Path, saves: bool) -> str:
    """Return the message for a run that is asked to stop; ``saves``: True if it writes checkpoints."""
    if saves:
        return f"the run is {path}, and {AUTO} goes on from its last checkpoint"
    return f"the run is {path}, and writes no checkpoints to go on from (checkpoint.every_epochs=0)"


def of_left(path: Path) -> str:
    """Return the message for a run without live ranks, by the files it left: a checkpoint may be missing."""
    try:
        is_saved = checkpoint.epoch_of(path / "checkpoints") is not None
    except OSError:
        is_saved = False
    if is_saved:
        return f"the run is {path}; continue with {AUTO}"
    return f"the run is {path}; {NONE}"
