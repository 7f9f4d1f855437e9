"""Intervals of paired comparisons (:func:`interval`): by ranks alone, so that a few disturbed rounds do not count."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb, exp
from statistics import median

LEVEL = 0.05  # probability that the interval misses the true median


@dataclass(frozen=True)
class Interval:
    """Median ratio of one way's seconds to another's, with its interval from ``n`` rounds."""

    middle: float
    low: float
    high: float
    n: int

    @property
    def told(self) -> str:
        """The ratio less one as text, ``+12 % (8 to 15)``."""
        low, high = (f"{100 * (ratio - 1):+.0f}" for ratio in (self.low, self.high))
        return f"{100 * (self.middle - 1):+.0f} % ({low} to {high})"


def interval(logs: Sequence[float]) -> Interval:
    """Return the interval of the median ratio from the logarithms of ratios, one for each round.

    The bounds are order statistics: the k-th smallest and k-th largest with the largest k for which a binomial
    variable of n trials and p = 1/2 is below k with probability LEVEL / 2 at most (the sign test; Conover 1999, 3.4).
    With fewer than six rounds they are the extremes, at a lower level.
    """
    n, ordered = len(logs), sorted(logs)
    k, below = 0, 0.0
    while k < n // 2 and below + comb(n, k) / 2**n <= LEVEL / 2:
        below += comb(n, k) / 2**n
        k += 1
    at = max(0, k - 1)
    return Interval(exp(median(ordered)), exp(ordered[at]), exp(ordered[n - 1 - at]), n)
