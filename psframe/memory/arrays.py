"""Placed arrays, independent of a training run: the implementation of :func:`psframe.memory.empty`."""

import operator
import os
import warnings
from collections.abc import Mapping
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from psframe.errors import UserError
from psframe.memory.pages import RESERVED_BYTES, no_huge_pages
from psframe.memory.placement import FOR_RUNS, Placement, bound
from psframe.memory.process_site import Site
from psframe.memory.topology import Topology, read


@cache
def _topology() -> Topology:
    return read("/")


def empty(shape: int | tuple[int, ...], dtype: DTypeLike, placement: str | Mapping[str, Any] | Placement) -> np.ndarray:
    """See :func:`psframe.memory.empty`."""
    shape, dtype = _described(shape, dtype)
    chosen, site = placed(placement)
    n_bytes = prod(shape) * dtype.itemsize
    try:
        memory = chosen.allocate(n_bytes, site)
    except (OSError, MemoryError, OverflowError) as error:
        policy = chosen.policy(site, False)
        if RESERVED_BYTES[policy.huge_pages]:
            raise no_huge_pages(policy, n_bytes) from None
        why = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"memory must be there to be placed, got none for {n_bytes:,} bytes ({why}); ask for less"
        ) from None
    for note in site.notes:
        warnings.warn(note, RuntimeWarning, stacklevel=3)  # the caller of psframe.memory.empty
    return np.ndarray(shape, dtype, memory)


def placed(placement: str | Mapping[str, Any] | Placement) -> tuple[Placement, Site]:
    """Return the placement that a name, a mapping or an object stands for, and where this process is."""
    if isinstance(placement, str | Mapping):
        choice = bound(placement)
        if choice.name in FOR_RUNS:
            raise UserError(f"an array must have one place, got {choice.name!r}, which is for a run; give, say, 'hbw'")
        chosen: Placement = choice()
    elif all(hasattr(placement, name) for name in ("policy", "allocate", "bind")):
        chosen = placement
    else:
        raise UserError(f"a placement must be a name, a mapping or a Placement, got {placement!r}; give, say, 'hbw'")
    return chosen, Site(_topology(), tuple(sorted(os.sched_getaffinity(0))))


def _described(shape: Any, dtype: DTypeLike) -> tuple[tuple[int, ...], np.dtype]:
    try:
        kind = np.dtype(dtype)
        sizes = (operator.index(shape),) if np.ndim(shape) == 0 else tuple(operator.index(n) for n in shape)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"an array must have a dtype and whole numbers for a shape, got {dtype!r} and {shape!r} ({error}); mend it"
        ) from None
    if kind.hasobject:
        raise UserError(f"a placed array must hold plain numbers, got dtype {kind}; give, say, float32")
    if any(n < 0 for n in sizes):
        raise UserError(f"a shape must hold numbers >= 0, got {sizes}; mend it")
    return sizes, kind
