"""End of a run whose metric no longer improves (:class:`EarlyStopping`)."""

from collections.abc import Mapping
from typing import Any

from psframe.record import metrics
from psframe.train.callbacks.base import Callback, Control
from psframe.train.callbacks.best import Best, Better


class EarlyStopping(Callback):
    """Stop after ``patience`` epochs in which a number of the record has not improved (Prechelt 1998).

    Parameters
    ----------
    metric : str
        Name of the number, such as ``test_loss`` or ``accuracy``.
    patience : int
        Epochs without an improvement before the run ends.
    min_delta : float
        An improvement is a change by more than this.
    better : str
        ``min`` or ``max``; ``auto``: ``min`` for losses, errors and seconds, else ``max``.
    reach : float or None
        Stop at this value of the number, or a better one.
    seconds : float
        Stop after so many seconds of training, of all epochs (``epoch_s``); 0: no limit.

    Attributes
    ----------
    best : Best
        Best value so far, and its epoch.
    """

    def __init__(
        self,
        metric: str = "test_loss",
        patience: int = 3,
        min_delta: float = 0.0,
        better: Better = "auto",
        reach: float | None = None,
        seconds: float = 0.0,
    ):
        self.patience, self.best, self.begun = patience, Best(metric, min_delta, better), 0
        self.reach, self.seconds, self.trained_s = reach, seconds, 0.0

    def on_run_begin(self, control: Control) -> None:
        self.best.read(control.path)
        # a run that was stopped has all of its patience again, one that was interrupted what it had left
        self.begun = control.epoch if control.epoch - self.best.epoch >= self.patience else 0
        self.trained_s = sum(record["epoch_s"] for record in metrics.read(control.path))

    def on_epoch_end(self, control: Control, record: Mapping[str, Any]) -> None:
        self.trained_s += record["epoch_s"]
        if self.reach is not None and self.best.is_as_good(record, self.reach):
            control.stop(f"{self.best.metric} has reached {self.reach:g}")
        elif self.seconds and self.trained_s >= self.seconds:
            control.stop(f"{self.seconds:g} s of training are over")
        if self.best.improves(record) or control.epoch - max(self.best.epoch, self.begun) < self.patience:
            return
        value = "none" if self.best.value is None else f"{self.best.value:.6g} of epoch {self.best.epoch}"
        control.stop(f"{self.best.metric} not better than {value} for {self.patience} epoch(s)")
