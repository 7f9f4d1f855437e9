"""Interpolation between a machine's measured exchanges (:func:`interpolated`)."""

from collections.abc import Sequence

import numpy as np

from psframe.predict.job import ExchangePlan
from psframe.predict.machine import Exchange


def interpolated(exchanges: Sequence[Exchange], way: ExchangePlan, n_bytes: int) -> float | None:
    """Return the seconds of an exchange; None if its way was not measured on this machine.

    Between sizes, seconds are linear in bytes, or linear in logarithms if they grow faster than the bytes (for example
    because malloc releases memory); they continue beyond the largest. Between ranks they are linear in logarithms.
    """
    matching = [exchange for exchange in exchanges if exchange.method == way.method]
    by_ranks = sorted({exchange.ranks for exchange in matching})
    if not by_ranks or way.ranks == 1:
        return None
    seconds = [_at([(e.bytes, e.seconds) for e in matching if e.ranks == ranks], n_bytes) for ranks in by_ranks]
    if len(by_ranks) == 1:
        return seconds[0] * way.ranks / by_ranks[0]
    x, y = np.log(by_ranks), np.log(np.maximum(seconds, 1e-6))
    return float(np.exp(_line(x, y, float(np.log(way.ranks)))))


def _at(points: list[tuple[int, float]], n_bytes: int) -> float:
    points.sort()
    x, y = np.array([p[0] for p in points], float), np.array([p[1] for p in points])
    if len(points) == 1:
        return float(y[0] * n_bytes / x[0])
    if n_bytes <= x[0]:
        return float(y[0])
    i = _part(x, float(n_bytes))
    if y[i + 1] * x[i] > y[i] * x[i + 1] and n_bytes < x[-1]:
        return float(np.exp(_line(np.log(x), np.log(np.maximum(y, 1e-6)), float(np.log(n_bytes)))))
    return max(1e-6, _line(x, y, float(n_bytes)))


def _line(x: np.ndarray, y: np.ndarray, at: float) -> float:
    """Return the piecewise linear function through the points at ``at``; beyond them extend the nearest segment."""
    i = _part(x, at)
    return float(y[i] + (y[i + 1] - y[i]) * (at - x[i]) / (x[i + 1] - x[i]))


def _part(x: np.ndarray, at: float) -> int:
    """Return the index of the segment that holds ``at``, or of the nearest one."""
    return int(np.clip(np.searchsorted(x, at) - 1, 0, len(x) - 2))
