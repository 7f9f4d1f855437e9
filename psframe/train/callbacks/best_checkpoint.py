"""Checkpoint of the epoch with the best metric (:class:`BestCheckpoint`), kept beside the newest ones."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from psframe.record import checkpoint
from psframe.train.callbacks.base import Callback, Control
from psframe.train.callbacks.best import Best, Better


class BestCheckpoint(Callback):
    """Keep the checkpoint of the best epoch; the file ``checkpoints/best`` names it.

    Parameters
    ----------
    metric : str
        Name of a number of the record, such as ``accuracy``.
    better : str
        ``min`` or ``max``; ``auto``: ``min`` for losses, errors and seconds, else ``max``.

    Attributes
    ----------
    best : Best
        Best value so far, and its epoch.
    """

    def __init__(self, metric: str = "accuracy", better: Better = "auto"):
        self.best, self.step = Best(metric, better=better), 0

    def on_run_begin(self, control: Control) -> None:
        self.best.read(control.path)

    def on_epoch_end(self, control: Control, record: Mapping[str, Any]) -> None:
        if self.best.improves(record):
            self.step = control.step
            control.save()

    def on_checkpoint(self, control: Control, path: Path) -> None:
        if self.step and checkpoint.step_of(path) == self.step:
            checkpoint.name_best(path)
