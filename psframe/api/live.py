"""Progress of a run in a script or notebook (:class:`Live`): bars and lines on a terminal, a curve in a notebook."""

from collections.abc import Mapping
from typing import Any

from psframe.record.view import View
from psframe.train.callbacks.base import Control


class Live:
    """Progress as a terminal shows it: a bar of the steps where there is one, and a line an epoch.

    Parameters
    ----------
    quiet : bool
        True to show nothing.
    """

    def __init__(self, quiet: bool = False):
        self.quiet, self.view = quiet, View(0, 0, quiet=True)
        self.done = 0

    def begin(self, control: Control) -> None:
        """Begin a run, or its continuation."""
        self.view = View(control.config.train.epochs, control.n_steps, self.quiet)
        self.done = control.step
        self.view.begin(control.epoch + 1)

    def step(self, step: int) -> None:
        """Show the steps of the run so far."""
        while self.done < step:
            self.done += 1
            self.view.step()

    def epoch(self, record: Mapping[str, Any]) -> None:
        """Show an epoch's record."""
        self.view.end(record)
        if record["epoch"] < self.view.epochs:
            self.view.begin(record["epoch"] + 1)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self.view.close()
