"""Every array that a rank keeps comes from here, and is counted by its role."""

from collections import Counter
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from psframe import compiled
from psframe.errors import UserError, nearest

ALIGNMENT_BYTES = 64  # a cache line, and the widest vector register

#: what memory is for; each has a placement of its own
ROLES = ("parameters", "gradients", "optimizer", "activations", "data", "exchange")


def untouched(role: str, n_bytes: int) -> Any:
    """Return ordinary memory, zeroed, whose pages are not there before they are used."""
    return compiled.numa.Block(n_bytes)


def padded(n_bytes: int) -> int:
    """Return ``n_bytes`` up to whole cache lines."""
    return -(-n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


class Allocator:
    """Hands out zeroed arrays, those of a role from the block reserved for it, and keeps the sum of their bytes.

    Parameters
    ----------
    allocate : callable
        ``allocate(role, n_bytes)`` gives zeroed memory, from the first byte of a page; OSError where there is none.

    Attributes
    ----------
    bytes_by_role : Counter
        Bytes handed out, in whole cache lines, by role of ``ROLES``.
    blocks : list of (str, ndarray)
        Role and memory, uint8 (n,), of every block.
    """

    def __init__(self, allocate: Callable[[str, int], Any] = untouched):
        self.allocate = allocate
        self.bytes_by_role: Counter[str] = Counter()
        self.blocks: list[tuple[str, np.ndarray]] = []
        self._left: dict[str, np.ndarray] = {}

    def reserve(self, role: str, n_bytes: int) -> None:
        """Take one block for the arrays of a role; what does not fit into it will be a block of its own.

        UserError where the system refuses.
        """
        if n_bytes:
            self._left[role] = self._block(role, n_bytes)

    def zeros(self, shape: int | tuple[int, ...], dtype: DTypeLike, role: str) -> np.ndarray:
        """Return a C-contiguous zeroed array, 64-byte aligned; UserError where the system refuses."""
        if role not in ROLES:
            raise UserError(f"memory must be for a role, got {role!r}; {nearest(role, ROLES)}")
        shape = (shape,) if isinstance(shape, int) else shape
        n_bytes = prod(shape) * np.dtype(dtype).itemsize
        n_padded = padded(n_bytes)
        left = self._left.get(role)
        if left is None or len(left) < n_padded:
            memory = self._block(role, n_padded)
        else:
            memory, self._left[role] = left[:n_padded], left[n_padded:]
        self.bytes_by_role[role] += n_padded
        return memory[:n_bytes].view(dtype).reshape(shape)

    def _block(self, role: str, n_bytes: int) -> np.ndarray:
        try:
            memory = np.ndarray(n_bytes, np.uint8, self.allocate(role, n_bytes))
        except (MemoryError, ValueError, OverflowError, OSError):
            raise UserError(
                f"a rank must have memory for its {role}, got none for {n_bytes:,} bytes; lower train.batch_size or "
                "choose a smaller model"
            ) from None
        self.blocks.append((role, memory))
        return memory
