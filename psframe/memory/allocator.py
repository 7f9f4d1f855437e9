"""Allocator of a rank's long-lived arrays (:class:`Allocator`), which counts their bytes by role."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from psframe import compiled
from psframe.config.placement_spec import ROLES
from psframe.errors import UserError, nearest
from psframe.memory.labels import Labels, Part, Span
from psframe.memory.tensor_names import place_of, role_of

ALIGNMENT_BYTES = 64  # a cache line, and the widest vector register

#: groups of a node's ranks with shared memory of their own: the ranks of a stage, and those with shards of its layers
SCOPES = ("stage", "crew")


def untouched(role: str, n_bytes: int) -> Any:
    """Return zeroed ordinary memory whose pages are allocated on first touch."""
    return compiled.numa.Block(n_bytes)


def padded(n_bytes: int) -> int:
    """Return ``n_bytes`` rounded up to a multiple of the cache line."""
    return -(-n_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def shared_block(allocator: "Allocator", n_bytes: int, role: str, is_mine: bool, *within: str) -> np.ndarray:
    """Return shared memory as :meth:`Allocator.shared` does, of ``n_bytes`` rounded up to full pages.

    One rank has ``is_mine``: it places and touches all of it.
    """
    page_bytes = allocator.home(role).page_bytes
    n_bytes = -(-n_bytes // page_bytes) * page_bytes
    return allocator.shared(n_bytes, role, [slice(0, n_bytes)] if is_mine else [], *within)


@dataclass(frozen=True)
class Home:
    """Placement name and page size of a role, the same on all ranks of a node.

    Attributes
    ----------
    by_tensor : bool
        True if its tensors may have placements of their own.
    near : mapping of int to int
        NUMA node near each of the node's ranks, by its number in the job, if memory is placed near the rank.
    """

    placement: str = "default"
    page_bytes: int = 4096
    by_tensor: bool = False
    near: Mapping[int, int] = field(default_factory=dict)


class Allocator:
    """Allocator of zeroed arrays, each from the block reserved for its place, with a count of bytes by place.

    A place is a role, or a tensor of one (:func:`psframe.memory.tensor_names.place_of`).

    Parameters
    ----------
    allocate : callable
        ``allocate(place, n_bytes)`` returns zeroed, page-aligned memory, or raises OSError.
    homes : mapping of str to Home, optional

    Attributes
    ----------
    bytes_by_place : Counter
        Bytes allocated, arrays rounded up to cache lines; of shared memory, this rank's pieces, by role.
    shared_by_role : Counter
        Bytes shared by all ranks of a node, by role; the same on all of them.
    blocks : list of (str, ndarray)
        Place and memory, uint8 (n,), of every private block; the caller adds ``pieces`` once they are placed.
    pieces : list of (str, ndarray)
        Role and memory, uint8 (n,), that the caller places and touches: this rank's pieces of shared memory, and
        private vectors of several tensors.
    beside : Counter
        Bytes that other code allocates, by role.
    """

    def __init__(self, allocate: Callable[[str, int], Any] = untouched, homes: Mapping[str, Home] | None = None):
        self.allocate, self.homes = allocate, homes or {}
        self.bytes_by_place: Counter[str] = Counter()
        self.shared_by_role: Counter[str] = Counter()
        self.beside: Counter[str] = Counter()
        self.blocks: list[tuple[str, np.ndarray]] = []
        self.pieces: list[tuple[str, np.ndarray]] = []
        #: bytes that a group of the node's ranks shares, by scope and role
        self.within: dict[str, Counter[str]] = {scope: Counter() for scope in SCOPES}
        self._labels, self._has_tensors = Labels(), any(home.by_tensor for home in self.homes.values())
        self.counts_only = True  #: False once all shared memory has been lent
        self._left: dict[str, np.ndarray] = {}  # by place
        self._lent: dict[tuple[str, str], np.ndarray] = {}

    def home(self, role: str) -> Home:
        """Return the home of a role."""
        return self.homes.get(role, Home())

    def count(self, role: str, n_bytes: int) -> None:
        """Count memory that other code allocates."""
        self.beside[role] += n_bytes

    def name(self, array: np.ndarray, spans: Iterable[Span]) -> None:
        """Name the tensors of a C-contiguous array, so that their pages are placed and counted apart."""
        if self._has_tensors:
            self._labels.add(array, spans)

    def parts(self) -> list[tuple[str, Part]]:
        """Return ``pieces`` with their places; those of roles by tensor are cut into the pages of each tensor."""
        return [
            (place_of(role, part.tensor), part)
            for role, memory in self.pieces
            for part in (self._labels.cut(memory) if self.home(role).by_tensor else [Part("", memory)])
        ]

    def reserve(self, place: str, n_bytes: int) -> None:
        """Allocate one block for the arrays of a place; an array that does not fit gets a block of its own.

        UserError if the system refuses.
        """
        if n_bytes:
            self._left[place] = self._block(place, n_bytes)

    def lend(self, role: str, memory: np.ndarray, within: str = "") -> None:
        """Provide the shared memory, uint8 (n,), of a role, of all the node's ranks or of one of ``SCOPES``."""
        self._lent[role, within] = memory

    def shared(self, n_bytes: int, role: str, mine: Iterable[slice], within: str = "") -> np.ndarray:
        """Return zeroed, page-aligned memory, uint8 (n_bytes,), visible to all ranks of the node (or of ``within``).

        All of these ranks must call, with the same arguments but ``mine``, in the same order. Without memory from
        :meth:`lend`, the result is private: enough while ``counts_only``.

        Parameters
        ----------
        n_bytes : int
            A multiple of the page size of the role's home.
        mine : iterable of slice
            The page-aligned byte ranges that this rank places and touches.
        within : str
            One of ``SCOPES``; "" for all ranks of the node.
        """
        counts = self.within[within] if within else self.shared_by_role
        begin = counts[role]
        counts[role] += n_bytes
        if (role, within) in self._lent:
            memory = self._lent[role, within][begin : begin + n_bytes]
            if len(memory) < n_bytes:
                raise AssertionError(f"{role}: more shared memory was asked for than was reckoned with")
        elif n_bytes and not self.counts_only:
            raise AssertionError(f"{role}: shared memory was asked for that was not reckoned with")
        else:
            memory = np.ndarray(n_bytes, np.uint8, self._allocated(untouched, role, n_bytes))
        for part in mine:
            if part.stop > part.start:
                self.bytes_by_place[role] += part.stop - part.start
                self.pieces.append((role, memory[part]))
        return memory

    def zeros(self, shape: int | tuple[int, ...], dtype: DTypeLike, role: str, tensor: str = "") -> np.ndarray:
        """Return a C-contiguous zeroed array, 64-byte aligned; UserError if the system refuses.

        It belongs to ``tensor``, or to those that :meth:`name` names later.
        """
        if role not in ROLES:
            raise UserError(f"memory must be for a role, got {role!r}; {nearest(role, ROLES)}")
        shape = (shape,) if isinstance(shape, int) else shape
        n_bytes = prod(shape) * np.dtype(dtype).itemsize
        n_padded, by_tensor = padded(n_bytes), self.home(role).by_tensor
        place = place_of(role, tensor) if by_tensor else role
        left = self._left.get(place)
        if by_tensor and not tensor:
            memory, n_padded = self._piece(role, n_bytes)
        elif left is None or len(left) < n_padded:
            memory = self._block(place, n_padded)
        else:
            memory, self._left[place] = left[:n_padded], left[n_padded:]
        self.bytes_by_place[place] += n_padded
        return memory[:n_bytes].view(dtype).reshape(shape)

    def _piece(self, role: str, n_bytes: int) -> tuple[np.ndarray, int]:
        """Return memory that the caller places later, and its size in bytes: full pages."""
        size = -(-n_bytes // compiled.numa.PAGE_BYTES) * compiled.numa.PAGE_BYTES
        memory = np.ndarray(size, np.uint8, self._allocated(untouched, role, size))
        if size:
            self.pieces.append((role, memory))
        return memory, size

    def _block(self, place: str, n_bytes: int) -> np.ndarray:
        memory = np.ndarray(n_bytes, np.uint8, self._allocated(self.allocate, place, n_bytes))
        self.blocks.append((place, memory))
        return memory

    def _allocated(self, allocate: Callable[[str, int], Any], place: str, n_bytes: int) -> Any:
        try:
            return allocate(place, n_bytes)
        except (MemoryError, ValueError, OverflowError, OSError):
            raise UserError(
                f"a rank must have memory for its {role_of(place)}, got none for {n_bytes:,} bytes; lower "
                "train.batch_size or choose a smaller model"
            ) from None


class Within:
    """View of an allocator for a node's ranks of one stage, whose shared memory is theirs alone, of any size."""

    def __init__(self, allocator: Allocator):
        self.allocator = allocator

    def __getattr__(self, name: str) -> Any:
        return getattr(self.allocator, name)

    def shared(self, n_bytes: int, role: str, mine: Iterable[slice]) -> np.ndarray:
        """Return memory as :meth:`Allocator.shared` does, shared by the ranks of this stage."""
        return self.allocator.shared(n_bytes, role, mine, "stage")


class Apart:
    """View of an allocator for one of several groups of a node's ranks, whose shared memory is the group's alone.

    All groups must make the same calls, in the same order.
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
