"""Where memory lies: the machine's topology, placements, and the proof of where pages landed.

:func:`empty` is the public call; what trains goes through :class:`psframe.memory.allocator.Allocator`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the topology is read before NumPy is imported
    import numpy as np
    from numpy.typing import DTypeLike

    from psframe.memory.placement import Placement


def empty(
    shape: "int | tuple[int, ...]",
    dtype: "DTypeLike" = "float32",
    placement: "str | Mapping[str, Any] | Placement" = "default",
) -> "np.ndarray":
    """Return a C-contiguous array of any numbers whose pages lie as ``placement`` says. No other rank need call.

    Its memory begins with a page and is freed when the last view of it is gone.

    Parameters
    ----------
    shape : int or tuple of int
    dtype : dtype
        Any but one that holds Python objects.
    placement : str, mapping or Placement
        A name, as ``"hbw"``; a name with its keys, as ``{"name": "hbw", "policy": "interleave"}`` or
        ``{"numa": [1]}``; or an object with the methods of :class:`psframe.memory.placement.Placement`.

    Raises
    ------
    UserError
        No such placement, no such memory here, no address space, or too few reserved huge pages. That ordinary pages
        are too few shows when they are written to.

    Warns
    -----
    RuntimeWarning
        Where memory is come by otherwise than asked: without memkind, or because mbind is denied.
    """
    from psframe.memory import arrays

    return arrays.empty(shape, dtype, placement)
