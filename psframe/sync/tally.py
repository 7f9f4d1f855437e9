"""What a sync mode did in an epoch, counted on each rank."""

from time import perf_counter
from typing import Any

import numpy as np

from psframe.record.trace import UNTRACED, Trace

LONGEST = 4096  # staleness that is told apart; what is staler counts as this


class Tally:
    """Counts since the owner last called :meth:`clear`.

    Attributes
    ----------
    pulls, pushes, dropped : int
        Of parameters, of gradients or differences, and of gradients that came too late to be used.
    used : int
        Samples whose gradients were applied, where that is not all of them; on the rank that applies them.
    wait_s : float
        Seconds in which this worker waited for others.
    stale : ndarray of int64, shape (LONGEST + 1,)
        How many gradients were so many clocks old; what a clock is, the mode says.
    last : int
        How many the last one was.
    skipped : list of dict
        ``step`` and ``ranks`` of gradients that a server dropped since they were not finite.

    Parameters
    ----------
    trace : Trace
        Traces waiting.
    """

    def __init__(self, trace: Trace = UNTRACED) -> None:
        self.trace = trace
        self.stale = np.zeros(LONGEST + 1, np.int64)
        self.skipped: list[dict[str, Any]] = []
        self.clear()

    def clear(self) -> None:
        """Begin to count anew."""
        self.pulls = self.pushes = self.dropped = self.used = 0
        self.last = 0
        self.wait_s = 0.0
        self.stale[:] = 0
        self.skipped.clear()

    def saw(self, staleness: int) -> None:
        """Count a gradient that was so many clocks old."""
        self.last = min(staleness, LONGEST)
        self.stale[self.last] += 1

    def waited_since(self, began: float) -> None:
        """Count the seconds since ``began``, of ``time.perf_counter``, as waiting."""
        self.wait_s += perf_counter() - began
        if self.trace.on:
            self.trace.add("wait", began)

    def counts(self) -> np.ndarray:
        """Return all whole numbers in one array, to be summed over ranks."""
        return np.concatenate([self.stale, [self.pulls, self.pushes, self.dropped, self.used]])


def described(counts: np.ndarray, n_samples: int) -> dict[str, Any]:
    """Return summed :meth:`Tally.counts` of an epoch of so many samples as the record has them."""
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
    """Return the least value that at least this share of the counted ones do not exceed; None where none are."""
    below = np.cumsum(histogram)
    return int(np.searchsorted(below, share * below[-1])) if below[-1] else None
