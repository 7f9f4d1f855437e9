"""Spread of measurements (:func:`spread`)."""

from collections.abc import Sequence


def spread(numbers: Sequence[float]) -> dict[str, float]:
    """Return the median, and the quartiles ``low`` and ``high``."""
    import numpy as np  # imported late: a rank's threads must be limited first

    low, middle, high = np.percentile(numbers, (25, 50, 75))
    return {"median": float(middle), "low": float(low), "high": float(high)}
