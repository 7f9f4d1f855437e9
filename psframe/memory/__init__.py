"""Memory placement: the machine's topology, placement policies, and an audit of the resulting page locations.

:func:`empty` is the public call; training allocates through :class:`psframe.memory.allocator.Allocator`.
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
    """Return an uninitialized C-contiguous array whose pages follow ``placement``. Not collective.

    The memory is page-aligned and freed with its last view.

    Parameters
    ----------
    shape : int or tuple of int
    dtype : dtype
        Any dtype without Python objects.
    placement : str, mapping or Placement
        A name, e.g. ``"hbw"``; a name with its keys, e.g. ``{"name": "hbw", "policy": "interleave"}`` or
        ``{"numa": [1]}``; or an object with the methods of :class:`psframe.memory.placement.Placement`.

    Raises
    ------
    UserError
        Unknown placement, memory absent on this machine, no address space, or too few reserved huge pages. A shortage
        of ordinary pages shows only on first write.

    Warns
    -----
    RuntimeWarning
        The memory differs from the request: memkind cannot serve it, mbind is denied, or the kernel has no transparent
        huge pages.
    """
    from psframe.memory import arrays

    return arrays.empty(shape, dtype, placement)
