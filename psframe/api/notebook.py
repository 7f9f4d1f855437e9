"""Progress of a run in a notebook (:class:`Curve`): loss and accuracy against epochs, drawn anew as epochs end."""

import sys
from collections.abc import Mapping
from importlib.resources import files
from time import monotonic
from typing import Any

from psframe.api.figure import Figure
from psframe.api.live import Live
from psframe.record.view import table
from psframe.report.charts import Series, lines, styled
from psframe.report.html import legend
from psframe.report.scale import Axis
from psframe.report.svg import esc
from psframe.train.callbacks.base import Control

EVERY_S = 0.5  # from one drawing of the steps to the next
SHOWN = 12  # epochs in the table, the last ones


def is_here() -> bool:
    """Return True in the kernel of a notebook, which can display HTML."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return getattr(shell, "kernel", None) is not None


class Curve(Live):
    """Progress as a notebook shows it."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.records: list[Mapping[str, Any]] = []
        self.epochs = self.n_steps = self.begun = 0
        self.drawn_s, self.handle = 0.0, None

    def begin(self, control: Control) -> None:
        self.epochs, self.n_steps = control.config.train.epochs, control.n_steps
        self.begun = self.done = control.step
        self._draw()

    def step(self, step: int) -> None:
        self.done = step
        if monotonic() - self.drawn_s >= EVERY_S:
            self._draw()

    def epoch(self, record: Mapping[str, Any]) -> None:
        self.records.append(record)
        self.begun = self.done
        self._draw()

    def close(self) -> None:
        self.n_steps = 0
        self._draw()

    def _draw(self) -> None:
        from IPython.display import display

        self.drawn_s, shown = monotonic(), Figure(self.page(), "24em")
        if self.handle is None:
            self.handle = display(shown, display_id=True)
        else:
            self.handle.update(shown)

    def page(self) -> str:
        """Return the page: how far the run is, its curves, and its last epochs."""
        style = (files("psframe.report") / "style.css").read_text(encoding="utf-8")
        losses = [self._series(0, "training loss", "loss"), self._series(1, "test loss", "test_loss")]
        correct = [self._series(2, "accuracy", "accuracy")]
        drawn = "".join(
            lines(title, series, Axis("epoch", zero=False, whole=True), Axis(title), small=True)
            for title, series in (("loss", losses), ("accuracy", correct))
        )
        rows = f"<pre>{esc(table(self.records[-SHOWN:]))}</pre>" if self.records else ""
        body = f"<p>{esc(self._place())}</p>{drawn}{legend([*losses, *correct])}" if self.records else self._place()
        return f"<!DOCTYPE html><style>{style} body {{ padding: .5rem }}</style>{body}{rows}"

    def _series(self, number: int, label: str, key: str) -> Series:
        points = [(float(r["epoch"]), float(r[key])) for r in self.records if isinstance(r.get(key), int | float)]
        return Series(label, points, styled(number))

    def _place(self) -> str:
        done = f"{len(self.records)} epochs are done"
        if not self.n_steps:
            return done
        return f"{done}, of {self.epochs}; {self.done - self.begun:,} of {self.n_steps:,} steps of the next one"
