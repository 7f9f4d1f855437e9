"""Sums of metrics over a rank's share of the test set (:class:`Meter`), and their values over the whole set."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from psframe.errors import UserError, raised
from psframe.nn.metrics.base import Metric

MAX_TEXT = 12 << 20  # characters of all values as JSON: a line of metrics.jsonl has at most 16 MiB

Metrics = Mapping[str, Metric]  #: by label


@dataclass
class Sums:
    """Sums over a rank's share, sent to rank 0.

    Attributes
    ----------
    totals : dict of str to ndarray
        By label; empty without samples.
    n_samples : int
    complaint : str
        Sentence on a metric that failed; "" if none did.
    """

    totals: dict[str, np.ndarray] = field(default_factory=dict)
    n_samples: int = 0
    complaint: str = ""


class Meter:
    """Sums over the batches of one evaluation.

    A metric of a user's own that fails is told by rank 0, when it has the sums of all ranks: no rank may leave an
    evaluation while others wait for it, as the stages of a pipeline do.
    """

    def __init__(self, metrics: Metrics):
        self.metrics, self.sums = metrics, Sums()

    def add(self, logits: np.ndarray, labels: np.ndarray) -> None:
        """Add a batch of at least one sample: logits (n, n_classes) float32 and labels (n,) int64."""
        if self.sums.complaint:
            return
        logits, labels = _read_only(logits), _read_only(labels)
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # of a network that has diverged
                for label, metric in self.metrics.items():
                    self._add(label, metric, logits, labels)
        except UserError as error:
            self.sums.complaint = str(error)
        self.sums.n_samples += len(labels)

    def _add(self, label: str, metric: Metric, logits: np.ndarray, labels: np.ndarray) -> None:
        batch = _called(label, metric, lambda: _as_sum(metric.sums(logits, labels)))
        before = self.sums.totals.get(label)
        self.sums.totals[label] = batch if before is None else _merged(label, metric, before, batch)

    def take(self) -> Sums:
        """Return the sums, and begin anew."""
        taken, self.sums = self.sums, Sums()
        return taken


def conclude(metrics: Metrics, every: Sequence[Sums]) -> tuple[dict[str, Any], str]:
    """Return the metrics' values over all samples, and the first complaint, "" if there is none.

    Parameters
    ----------
    metrics : dict of str to Metric
        By label.
    every : sequence of Sums
        By rank; they are merged in this order.

    Returns
    -------
    values : dict
        Numbers and nested lists of numbers by label, as JSON has them: None for a number that is not finite. Without
        those of a metric that failed; empty if it failed on a batch.
    complaint : str
    """
    complaint = next((sums.complaint for sums in every if sums.complaint), "")
    parts, n_samples = [sums.totals for sums in every if sums.n_samples], sum(sums.n_samples for sums in every)
    values: dict[str, Any] = {}
    for label, metric in metrics.items() if parts and not complaint else ():
        try:
            values[label] = _value(label, metric, [totals[label] for totals in parts], n_samples)
        except UserError as error:
            complaint = complaint or str(error)
    n_characters = {label: len(json.dumps(value)) for label, value in values.items()}
    if sum(n_characters.values()) > MAX_TEXT:
        largest = max(n_characters, key=lambda label: n_characters[label])
        return {}, complaint or (
            f"the values of metrics must have at most {MAX_TEXT:,} characters in a line of metrics.jsonl, got "
            f"{sum(n_characters.values()):,}, most of {largest!r}; leave it out"
        )
    return values, complaint


def _value(label: str, metric: Metric, totals: Sequence[np.ndarray], n_samples: int) -> Any:
    total = reduce(lambda a, b: _merged(label, metric, a, b), totals)
    return _called(label, metric, lambda: _plain(metric.finish(total, n_samples)))


def _merged(label: str, metric: Metric, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    if a.shape != b.shape:
        raise UserError(
            f"metric {label!r} must have sums of the same shape for every batch, got {a.shape} and {b.shape}; mend its "
            "sums"
        )
    merge = getattr(metric, "merge", np.add)

    def body() -> np.ndarray:
        total = merge(a, b)
        return total if total is a else _as_sum(total)

    return _called(label, metric, body)


def _called(label: str, metric: Metric, body: Callable[[], Any]) -> Any:
    """Return the result of ``body``; UserError if it raises, unless psframe's own metric does: that is a defect."""
    try:
        return body()
    except (Exception, SystemExit) as error:
        module = type(metric).__module__
        if module.startswith("psframe.nn.metrics."):
            raise
        why = str(error) if isinstance(error, UserError) else raised(error, f"{module}:")
        raise UserError(
            f"metric {label!r} must give sums of every batch, and of these a number or lists of numbers, got {why}; "
            "mend it"
        ) from None


def _as_sum(value: Any) -> np.ndarray:
    """Return a copy of a sum as int64 or float64."""
    array = np.array(value)
    if array.dtype.kind not in "biuf":
        raise UserError(f"sums of {array.dtype}")
    return array.astype(np.float64 if array.dtype.kind == "f" else np.int64, copy=False)


def _plain(value: Any) -> Any:
    """Return a number, or a nested list of them, as JSON has it."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if not isinstance(value, int | float):
        raise UserError(f"{value!r} from finish")
    return value if math.isfinite(value) else None


def _read_only(array: np.ndarray) -> np.ndarray:
    view = array.view()
    view.flags.writeable = False
    return view
