"""Buffers as MPI's calls take them: arrays, or lists of an array, counts, displacements and a type."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def array(spec: Any) -> Any:
    """Return the flat array of a buffer: an array, or a list with one in front."""
    return (spec[0] if isinstance(spec, (list, tuple)) else spec).reshape(-1)


def part(spec: Any) -> np.ndarray:
    """Return a copy of what a rank sends: all of an array, or as many numbers as the list says."""
    numbers = array(spec)
    n = spec[1] if isinstance(spec, (list, tuple)) and isinstance(spec[1], int) else len(numbers)
    return np.array(numbers[:n])


def places(spec: Any) -> list[slice]:
    """Return where each rank's part lies in a buffer ``[array, counts, (displacements), type]``."""
    _, counts, *rest = spec
    starts = rest[0] if rest and isinstance(rest[0], (list, tuple, np.ndarray)) else None
    ends = np.cumsum(counts)
    return [
        slice(int(begin), int(begin) + int(n))
        for begin, n in zip(ends - counts if starts is None else starts, counts, strict=True)
    ]


def spread(parts: Sequence[np.ndarray], spec: Any) -> None:
    """Write the ranks' parts to their places in a buffer."""
    numbers = array(spec)
    for where, numbers_of in zip(places(spec), parts, strict=True):
        numbers[where] = numbers_of


def add(every: Mapping[int, np.ndarray], out: np.ndarray) -> None:
    """Write the sum of the ranks' arrays, a left fold in the order of ranks."""
    first, *others = (every[rank] for rank in sorted(every))
    total = first.copy()
    for other in others:
        total += other
    out[:] = total
