"""Every array that a rank keeps comes from here, and is counted by its role."""

from collections import Counter
from math import prod

import numpy as np
from numpy.typing import DTypeLike

from psframe.errors import UserError

ALIGNMENT_BYTES = 64  # a cache line, and the widest vector register


class Allocator:
    """Hands out zeroed arrays and keeps the sum of their bytes.

    Attributes
    ----------
    bytes_by_role : Counter
        Bytes handed out for ``parameters``, ``gradients``, ``optimizer``, ``activations``, ``exchange`` and ``batch``.
    """

    def __init__(self) -> None:
        self.bytes_by_role: Counter[str] = Counter()

    def zeros(self, shape: int | tuple[int, ...], dtype: DTypeLike, role: str) -> np.ndarray:
        """Return a C-contiguous zeroed array, 64-byte aligned. Pages are not touched before they are used.

        UserError where the system refuses.
        """
        shape = (shape,) if isinstance(shape, int) else shape
        n_bytes = prod(shape) * np.dtype(dtype).itemsize
        try:
            block = np.zeros(n_bytes + ALIGNMENT_BYTES, np.uint8)
        except (MemoryError, ValueError, OverflowError):
            raise UserError(
                f"a rank must have memory for its {role}, got none for an array of {n_bytes:,} bytes; lower "
                "train.batch_size or choose a smaller model"
            ) from None
        start = -block.ctypes.data % ALIGNMENT_BYTES
        self.bytes_by_role[role] += n_bytes
        return block[start : start + n_bytes].view(dtype).reshape(shape)
