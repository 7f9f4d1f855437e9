"""Arrays by placement, for anyone: behind :func:`psframe.memory.empty`."""

import os
from collections.abc import Mapping
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from psframe.errors import UserError
from psframe.memory.placement import TABLE, Placement, spelled_out
from psframe.memory.site import Site
from psframe.memory.topology import Topology, read
from psframe.registry import bind


@cache
def _topology() -> Topology:
    return read("/")


def empty(shape: int | tuple[int, ...], dtype: DTypeLike, placement: str | Mapping[str, Any] | Placement) -> np.ndarray:
    """See :func:`psframe.memory.empty`."""
    dtype = np.dtype(dtype)
    shape = (int(shape),) if np.ndim(shape) == 0 else tuple(map(int, shape))  # type: ignore[arg-type]
    if dtype.hasobject:
        raise UserError(f"a placed array must hold plain numbers, got dtype {dtype}; give, say, float32")
    if any(n < 0 for n in shape):
        raise UserError(f"a shape must hold numbers >= 0, got {shape}; mend it")
    named = isinstance(placement, str | Mapping)
    chosen: Placement = bind("placement", TABLE, spelled_out(placement))() if named else placement  # type: ignore
    n_bytes = prod(shape) * dtype.itemsize
    try:
        memory = chosen.allocate(n_bytes, Site(_topology(), tuple(sorted(os.sched_getaffinity(0)))))
    except (OSError, MemoryError, OverflowError) as error:
        raise UserError(f"memory must be there to be placed, got none for {n_bytes:,} bytes ({error})") from None
    return np.ndarray(shape, dtype, memory)
