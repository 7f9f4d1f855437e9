"""Names of the tensors that lie in memory (:class:`Labels`), by which its pages are told apart."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from psframe import compiled

#: a tensor's name, and its first byte and the one after its last, from the begin of an array
Span = tuple[str, int, int]


@dataclass(frozen=True)
class Part:
    """Pages of one tensor in a piece of memory.

    Attributes
    ----------
    tensor : str
        "" for memory that belongs to none.
    memory : ndarray of uint8
    n_shared : int
        Pages that hold bytes of other tensors, too.
    """

    tensor: str
    memory: np.ndarray
    n_shared: int = 0


class Labels:
    """Tensors by address."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int, str]] = []

    def add(self, array: np.ndarray, spans: Iterable[Span]) -> None:
        """Name the tensors of a C-contiguous array; to name it again in the same way changes nothing."""
        begin = array.ctypes.data
        self._spans += [(begin + first, begin + end, tensor) for tensor, first, end in spans if end > first]

    def cut(self, memory: np.ndarray) -> list[Part]:
        """Cut a page-aligned mapping, uint8 (n,), into the pages of each tensor.

        A tensor begins at the page boundary nearest to its first byte. So a small one may have no page, and of several
        that begin at the same boundary the last one has the page.
        """
        size, first = compiled.numa.PAGE_BYTES, memory.ctypes.data
        marks, n_pages = self._marks(first, len(memory)), -(-len(memory) // size)
        inner = sorted({at // size for at, _ in marks if at % size})
        parts = []
        for (at, tensor), (after, _) in pairwise([*marks, (n_pages * size, "")]):
            begin, end = ((place + size // 2) // size for place in (at, after))
            n_shared = bisect_left(inner, end) - bisect_left(inner, begin)
            if tensor or end > begin:
                parts.append(Part(tensor, memory[begin * size : end * size], n_shared))
        return parts

    def _marks(self, first: int, n_bytes: int) -> list[tuple[int, str]]:
        """Return the bytes of a mapping at which tensors, or memory of none, begin, with their names.

        The zeros between tensors, less than a page, belong to the one before.
        """
        within = sorted({span for span in self._spans if span[1] > first and span[0] < first + n_bytes})
        marks, end = [(0, "")], 0
        for begin, stop, tensor in within:
            begin, stop = max(0, begin - first), min(n_bytes, stop - first)
            if begin - end >= compiled.numa.PAGE_BYTES:
                marks.append((end, ""))
            marks.append((begin, tensor))
            end = max(end, stop)
        if n_bytes - end >= compiled.numa.PAGE_BYTES:
            marks.append((end, ""))
        return marks
