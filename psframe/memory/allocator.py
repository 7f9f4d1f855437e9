"""Every array that a rank keeps comes from here, and is counted by its role."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from psframe import compiled
from psframe.config.placement_spec import ROLES
from psframe.errors import UserError, nearest

ALIGNMENT_BYTES = 64  # a cache line, and the widest vector register

#: ranks of a node that share memory with each other alone: those of a stage, and those with the shards of its layers
SCOPES = ("stage", "crew")


def untouched(role: str, n_bytes: int) -> Any:
    """Return ordinary memory, zeroed, whose pages are not there before they are used."""
    return compiled.numa.Block(n_bytes)


def padded(n_bytes: int) -> int:
    """Return ``n_bytes`` up to whole cache lines."""
    return -(-n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


@dataclass(frozen=True)
class Home:
    """Where a role lies, as all ranks of a node see it: the name of its placement, and the size of its pages."""

    placement: str = "default"
    page_bytes: int = 4096


class Allocator:
    """Hands out zeroed arrays, those of a role from the block reserved for it, and keeps the sum of their bytes.

    Parameters
    ----------
    allocate : callable
        ``allocate(role, n_bytes)`` gives zeroed memory, from the first byte of a page; OSError where there is none.
    homes : mapping of str to Home, optional

    Attributes
    ----------
    bytes_by_role : Counter
        Bytes handed out, in whole cache lines, by role of ``ROLES``; of what a node shares, those that are this rank's.
    shared_by_role : Counter
        Bytes that the ranks of a node share, by role; the same on all of them.
    blocks : list of (str, ndarray)
        Role and memory, uint8 (n,), of every block, and of every piece of shared memory that is this rank's.
    pieces : list of (str, ndarray)
        Those pieces alone: they are this rank's to place and to touch.
    beside : Counter
        Bytes that others than this will hand out, by role.
    """

    def __init__(self, allocate: Callable[[str, int], Any] = untouched, homes: Mapping[str, Home] | None = None):
        self.allocate, self.homes = allocate, homes or {}
        self.bytes_by_role: Counter[str] = Counter()
        self.shared_by_role: Counter[str] = Counter()
        self.beside: Counter[str] = Counter()
        self.blocks: list[tuple[str, np.ndarray]] = []
        self.pieces: list[tuple[str, np.ndarray]] = []
        #: of what other ranks share than those of a node: by whose they are, and role
        self.within: dict[str, Counter[str]] = {scope: Counter() for scope in SCOPES}
        self._left: dict[str, np.ndarray] = {}
        self._lent: dict[tuple[str, str], np.ndarray] = {}

    def home(self, role: str) -> Home:
        """Return where a role lies."""
        return self.homes.get(role, Home())

    def count(self, role: str, n_bytes: int) -> None:
        """Take note of memory that others will hand out."""
        self.beside[role] += n_bytes

    def reserve(self, role: str, n_bytes: int) -> None:
        """Take one block for the arrays of a role; what does not fit into it will be a block of its own.

        UserError where the system refuses.
        """
        if n_bytes:
            self._left[role] = self._block(role, n_bytes)

    def lend(self, role: str, memory: np.ndarray, within: str = "") -> None:
        """Give the memory, uint8 (n,), that the node's ranks share for a role; or those of one of ``SCOPES``."""
        self._lent[role, within] = memory

    def shared(self, n_bytes: int, role: str, mine: Iterable[slice], within: str = "") -> np.ndarray:
        """Return zeroed memory that all ranks of the node see, uint8 (n_bytes,), from the first byte of a page.

        All ranks of the node ask for the same, in one order. Where none was lent it is this rank's own, to reckon with.

        Parameters
        ----------
        n_bytes : int
            In whole pages of the role's home.
        mine : iterable of slice
            Those parts, in whole pages, that this rank is to place and to touch.
        """
        counts = self.within[within] if within else self.shared_by_role
        begin = counts[role]
        counts[role] += n_bytes
        if (role, within) in self._lent:
            memory = self._lent[role, within][begin : begin + n_bytes]
            if len(memory) < n_bytes:
                raise AssertionError(f"{role}: more shared memory was asked for than was reckoned with")
        else:
            memory = np.ndarray(n_bytes, np.uint8, self._allocated(untouched, role, n_bytes))
        for part in mine:
            if part.stop > part.start:
                self.bytes_by_role[role] += part.stop - part.start
                self.pieces.append((role, memory[part]))
        return memory

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
        memory = np.ndarray(n_bytes, np.uint8, self._allocated(self.allocate, role, n_bytes))
        self.blocks.append((role, memory))
        return memory

    def _allocated(self, allocate: Callable[[str, int], Any], role: str, n_bytes: int) -> Any:
        try:
            return allocate(role, n_bytes)
        except (MemoryError, ValueError, OverflowError, OSError):
            raise UserError(
                f"a rank must have memory for its {role}, got none for {n_bytes:,} bytes; lower train.batch_size or "
                "choose a smaller model"
            ) from None


class Within:
    """An allocator as a node's ranks of one stage see it: what they share is theirs alone, of whatever size."""

    def __init__(self, allocator: Allocator):
        self.allocator = allocator

    def __getattr__(self, name: str) -> Any:
        return getattr(self.allocator, name)

    def shared(self, n_bytes: int, role: str, mine: Iterable[slice]) -> np.ndarray:
        """Return what :meth:`Allocator.shared` does, of memory that these ranks share."""
        return self.allocator.shared(n_bytes, role, mine, "stage")


class Apart:
    """An allocator as one of several groups of a node's ranks sees it: what they share is theirs, not the node's.

    All groups ask for the same, in one order.
    """

    def __init__(self, allocator: Allocator, place: int, n_places: int):
        self.allocator, self.place, self.n_places = allocator, place, n_places

    def __getattr__(self, name: str) -> Any:
        return getattr(self.allocator, name)

    def shared(self, n_bytes: int, role: str, mine: Iterable[slice]) -> np.ndarray:
        """Return what :meth:`Allocator.shared` does, for each group another."""
        begin = self.place * n_bytes
        shifted = [slice(begin + part.start, begin + part.stop) for part in mine]
        return self.allocator.shared(self.n_places * n_bytes, role, shifted)[begin : begin + n_bytes]
