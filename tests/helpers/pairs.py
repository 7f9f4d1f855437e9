"""Few combinations in which every two values of different factors meet."""

from itertools import combinations, product
from operator import getitem
from typing import Any


def pairwise(*factors: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """Return combinations of the factors' values, such that each pair of values of two factors is in one of them.

    The first with the most pairs that are not yet covered is taken, again and again (Cohen et al. 1997), so the result
    is the same every time.
    """
    return [tuple(map(getitem, factors, places)) for places in _places([len(factor) for factor in factors])]


def _places(sizes: list[int]) -> list[tuple[int, ...]]:
    every = list(product(*map(range, sizes)))
    left = {pair for combination in every for pair in _pairs(combination)}
    chosen = []
    while left:
        best = max(every, key=lambda combination: len(left.intersection(_pairs(combination))))
        chosen.append(best)
        left.difference_update(_pairs(best))
    return chosen


def _pairs(combination: tuple[Any, ...]) -> set[Any]:
    return set(combinations(enumerate(combination), 2))
