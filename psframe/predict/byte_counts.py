"""Bytes of a step as counted by the collectives (``psframe.record.traffic``), on any number of ranks (:func:`counted`).

A message is read once and written once. An update with momentum reads the mean, parameters and momentum, and writes the
latter two. If it sums rows in the same pass, it reads these in place of the mean.
"""

from psframe.predict.job import ExchangePlan

STATE = 4  # vectors of an update besides the mean: parameters and momentum, read and written


def counted(way: ExchangePlan, n_bytes: float) -> tuple[float, float]:
    """Return the bytes read and written, and the bytes sent, by all ranks of one node in a step.

    Parameters
    ----------
    n_bytes : float
        Bytes of the parameters.
    """
    n, w = way.ranks, way.n_workers
    if way.collective == "null" or n == 1:
        return (1 + STATE) * n_bytes, 0.0
    if way.collective in ("shared", "hierarchical"):
        return (w + STATE) * n_bytes, 0.0
    sent = 2 * (n - 1) * n_bytes
    canonical = way.is_canonical
    if way.mode == "allreduce":  # each rank sums a segment, and then updates all parameters
        return 2 * sent + ((w + 1) * canonical + n * (1 + STATE)) * n_bytes, sent
    rows = w if canonical or way.collective == "object" else 1
    return 2 * sent + (rows + STATE) * n_bytes, sent
