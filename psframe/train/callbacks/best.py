"""Best value of a metric over the epochs (:class:`Best`)."""

from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from psframe.errors import UserError, nearest
from psframe.record import metrics

Better = Literal["auto", "min", "max"]


class Best:
    """Best value of a number in the records of a run.

    Parameters
    ----------
    metric : str
        Name of the number.
    min_delta : float
        An improvement is a change by more than this.
    better : str
        ``min``, ``max``, or ``auto`` to tell from the name.

    Attributes
    ----------
    value : float or None
        Best value so far.
    epoch : int
        Epoch of the best value; 0 before the first one.
    """

    def __init__(self, metric: str, min_delta: float = 0.0, better: Better = "auto"):
        if better not in ("auto", "min", "max"):
            raise UserError(f"better must be auto, min or max, got {better!r}; mend the callback")
        smaller = metric.endswith("_s") or any(word in metric for word in ("loss", "error"))
        self.metric, self.min_delta, self.smaller = metric, min_delta, better == "min" or (better == "auto" and smaller)
        self.value: float | None = None
        self.epoch = 0

    def read(self, run: Path) -> None:
        """Take the values of the epochs that a run has recorded, which may lack the metric."""
        for record in metrics.read(run):
            if self.metric in numbers(record):
                self.improves(record)

    def is_as_good(self, record: Mapping[str, Any], goal: float) -> bool:
        """Return True if a record's value is ``goal`` or better; False without a value."""
        value = numbers(record).get(self.metric)
        return value is not None and (value <= goal if self.smaller else value >= goal)

    def improves(self, record: Mapping[str, Any]) -> bool:
        """Return True, and keep the value, if a record has a better one; UserError if it has no such number."""
        named = numbers(record)
        if self.metric not in named:
            raise UserError(
                f"a metric must be a number of the epochs' records, got {self.metric!r}; {nearest(self.metric, named)}"
            )
        value = named[self.metric]
        if value is None or not isfinite(value):
            return False
        if self.value is not None:
            gain = self.value - value if self.smaller else value - self.value
            if gain <= self.min_delta:
                return False
        self.value, self.epoch = float(value), int(record["epoch"])
        return True


def numbers(record: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the numbers of a record, those of its metrics among them; None where there is no value."""
    named = {**record, **(record.get("metrics") or {})}
    return {name: value for name, value in named.items() if value is None or type(value) in (int, float)}
