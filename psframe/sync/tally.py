"""Counts of a sync mode's operations in an epoch, on each rank (:class:`Tally`)."""

from typing import Any

import numpy as np

from psframe.record.clock import CLOCK
from psframe.record.trace import UNTRACED, Trace
from psframe.record.traffic import Traffic

LONGEST = 4096  # largest staleness in the histogram, which includes any larger one


class Tally:
    """Counts since the owner last called :meth:`clear`.

    Attributes
    ----------
    pulls, pushes, dropped : int
        Pulls of parameters, pushes of gradients or differences, and gradients that arrived too late to be used.
    used : int
        Samples whose gradients were applied, if not all were; on the rank that applies them.
    wait_s : float
        Seconds in which this worker waited for others.
    stale : ndarray of int64, shape (LONGEST + 1,)
        Number of gradients by staleness in clocks, whose meaning depends on the mode.
    last : int
        Staleness of the last gradient.
    skipped : list of dict
        ``step`` and ``ranks`` of non-finite gradients that a server dropped.
    traffics : list of Traffic
        Bytes that neither the collective nor the mode's ``Updater`` counts, by what moves them; see :meth:`moved_by`.

    Parameters
    ----------
    trace : Trace
        Traces waiting.
    """

    def __init__(self, trace: Trace = UNTRACED) -> None:
        self.trace = trace
        self.stale = np.zeros(LONGEST + 1, np.int64)
        self.skipped: list[dict[str, Any]] = []
        self.traffics: list[Traffic] = []
        self.clear()

    def clear(self) -> None:
        """Reset the counts."""
        self.pulls = self.pushes = self.dropped = self.used = 0
        self.last = 0
        self.wait_s = 0.0
        self.stale[:] = 0
        self.skipped.clear()
        for traffic in self.traffics:
            traffic.clear()

    def moved_by(self, traffic: Traffic) -> Traffic:
        """Count these bytes too, and clear them with the rest; return ``traffic``."""
        self.traffics.append(traffic)
        return traffic

    def saw(self, staleness: int) -> None:
        """Count a gradient of this staleness."""
        self.last = min(staleness, LONGEST)
        self.stale[self.last] += 1

    def pulled(self) -> None:
        self.pulls += 1

    def pushed(self) -> None:
        self.pushes += 1

    def exchanged(self, staleness: int) -> None:
        """Count a pull, a push, and a gradient of this staleness."""
        self.saw(staleness)
        self.pulled()
        self.pushed()

    def waited_since(self, began: float) -> None:
        """Count the seconds since ``began``, of ``CLOCK``, as waiting."""
        self.wait_s += CLOCK.now() - began
        if self.trace.on:
            self.trace.add("wait", began)

    def counts(self) -> np.ndarray:
        """Return all integer counts in one array, int64 (LONGEST + 5,), to be summed over ranks."""
        return np.concatenate([self.stale, [self.pulls, self.pushes, self.dropped, self.used]])


def described(counts: np.ndarray, n_samples: int) -> dict[str, Any]:
    """Return the record's entries from summed :meth:`Tally.counts` of an epoch of ``n_samples`` samples."""
    stale, (pulls, pushes, dropped, used) = counts[: LONGEST + 1], counts[LONGEST + 1 :].tolist()
    seen = np.flatnonzero(stale)
    return {
        "pulls": pulls,
        "pushes": pushes,
        "dropped": dropped,
        "samples_used": used or n_samples,
        "staleness": {str(clocks): int(stale[clocks]) for clocks in seen},
        "staleness_p50": quantile(stale, 0.5),
        "staleness_p99": quantile(stale, 0.99),
    }


def quantile(histogram: np.ndarray, share: float) -> int | None:
    """Return the least value not exceeded by at least this share of the counts; None if the histogram is empty."""
    below = np.cumsum(histogram)
    return int(np.searchsorted(below, share * below[-1])) if below[-1] else None
