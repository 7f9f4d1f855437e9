"""Partition of a network's layers into stages of nearly equal costs (:func:`balanced`)."""

from collections.abc import Sequence
from itertools import accumulate


def balanced(costs: Sequence[float], n_stages: int) -> list[int]:
    """Return the begin of each stage, and the end: n_stages + 1 layer indices; no stage is empty.

    The cut minimizes the largest sum of ``costs`` in a stage; ties go to the cut with the smallest later stages.
    """
    n, before = len(costs), [0.0, *accumulate(costs)]
    #: [stages - 1][layers]: largest sum in the best cut of the first layers, and the begin of its last stage
    best = [[(before[i], 0) for i in range(n + 1)]]
    for stages in range(1, n_stages):
        row = [(float("inf"), 0)] * (n + 1)
        for end in range(stages + 1, n + 1):
            row[end] = min((max(best[-1][at][0], before[end] - before[at]), -at) for at in range(stages, end))
        best.append([(largest, -at) for largest, at in row])
    cuts = [n]
    for row in reversed(best):
        cuts.append(row[cuts[-1]][1])
    return cuts[::-1]
