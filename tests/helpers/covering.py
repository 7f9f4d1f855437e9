"""Covering arrays: the fewest combinations found in which every pair of values of two axes occurs."""

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any


def pairwise(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return combinations, one value of each axis, that have every pair of values of any two axes.

    Greedy and deterministic: the next row is the one that has the most pairs that none had before. Axes must be short,
    since all of their product is looked at.
    """
    rows = list(product(*(range(len(axis)) for axis in axes)))
    missing = set().union(*(_pairs(row) for row in rows)) if len(axes) > 1 else {((0, i),) for i in range(len(axes[0]))}
    chosen = []
    while missing:
        best = max(rows, key=lambda row: len(_pairs(row) & missing))
        missing -= _pairs(best)
        chosen.append(tuple(axis[i] for axis, i in zip(axes, best, strict=True)))
    return chosen


def _pairs(row: Iterable[int]) -> set[tuple[tuple[int, int], ...]]:
    cells = list(enumerate(row))
    return set(combinations(cells, 2)) if len(cells) > 1 else {(cells[0],)}
