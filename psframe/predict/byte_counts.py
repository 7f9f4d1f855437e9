"""The bytes of a step that the collectives count (``psframe.record.traffic``), reckoned for any number of ranks.

What is sent is read once and written once. An update with momentum reads the mean, parameters and momentum, and writes
these two; where rows are summed, in one pass with it, they are read in place of the mean.
"""

from psframe.predict.job import Way

STATE = 4  # vectors of an update beside the mean: parameters and momentum, read and written


def counted(way: Way, n_bytes: float) -> tuple[float, float]:
    """Return bytes read and written, and bytes sent, by all ranks of one node in a step.

    Parameters
    ----------
    n_bytes : float
        Of the parameters.
    """
    n, w = way.ranks, way.n_workers
    if way.collective == "null" or n == 1:
        return (1 + STATE) * n_bytes, 0.0
    if way.collective in ("shared", "hierarchical"):
        return (w + STATE) * n_bytes, 0.0
    sent = 2 * (n - 1) * n_bytes
    summed = way.reproducible == "fixed_workers"
    if way.mode == "allreduce":  # a segment of the sum on each, and then the update of all on all
        return 2 * sent + ((w + 1) * summed + n * (1 + STATE)) * n_bytes, sent
    rows = w if summed or way.collective == "object" else 1
    return 2 * sent + (rows + STATE) * n_bytes, sent
