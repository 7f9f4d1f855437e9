"""Segments of a vector among a node's reducers, and vectors in the node's shared memory (:class:`Division`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from psframe.collectives.base import cut
from psframe.memory.allocator import Allocator
from psframe.memory.extent import Extent

ITEM_BYTES = 4  # float32


@dataclass(frozen=True)
class Division:
    """A vector of ``size`` numbers cut into chunks, and each chunk into one segment per reducer, all in full pages.

    Attributes
    ----------
    size : int
        Length of the vector.
    page_bytes : int
    chunk : int
        Numbers of a chunk, in full pages; the last one may be shorter.
    n_reducers : int
    """

    size: int
    page_bytes: int
    chunk: int
    n_reducers: int

    @property
    def padded(self) -> int:
        """Length of the vector in memory, rounded up to full pages."""
        return whole(self.size, self.page_bytes)

    @cached_property
    def chunks(self) -> list[slice]:
        """Slices of the vector, the chunks."""
        begins = range(0, max(1, -(-self.padded // self.chunk)) * self.chunk, self.chunk)
        return [slice(min(begin, self.size), min(begin + self.chunk, self.size)) for begin in begins]

    @property
    def n_chunks(self) -> int:
        return len(self.chunks)

    def n_of(self, reducer: int) -> int:
        """Return how many numbers of the vector a reducer has."""
        return sum(segment.stop - segment.start for segment in self.segments(reducer))

    def within(self, reducer: int) -> slice:
        """Return the reducer's pages of a chunk in memory, as a slice of its numbers."""
        page = self.page_bytes // ITEM_BYTES
        pages = cut(self.chunk // page, self.n_reducers, reducer)
        return slice(pages.start * page, pages.stop * page)

    def segments(self, reducer: int) -> Iterator[slice]:
        """Yield the reducer's segment of every chunk, cut at the vector's end; some may be empty."""
        part = self.within(reducer)
        for chunk in self.chunks:
            yield slice(min(chunk.start + part.start, self.size), min(chunk.start + part.stop, self.size))

    def pages(self, reducer: int) -> Iterator[slice]:
        """Yield the reducer's slices of a vector in memory, in bytes, padding included."""
        part = self.within(reducer)
        for begin in range(0, self.padded, self.chunk):
            start, stop = min(begin + part.start, self.padded), min(begin + part.stop, self.padded)
            if start < stop:
                yield slice(start * ITEM_BYTES, stop * ITEM_BYTES)


@dataclass(frozen=True)
class Snapped(Division):
    """The same for updates of whole tensors: chunks and segments end where ``extent`` allows.

    A chunk is as many tensors as fit, and long enough for the longest; a page is the reducer's in whose segment it
    ends.
    """

    extent: Extent

    @cached_property
    def chunks(self) -> list[slice]:
        assert self.extent.places is not None
        ends = [0]
        for end, following in zip(self.extent.places, (*self.extent.places[1:], None), strict=True):
            if following is None or following - ends[-1] > self.chunk:
                ends.append(end)
        return [slice(start, stop) for start, stop in pairwise(ends)]

    def segments(self, reducer: int) -> Iterator[slice]:
        for chunk in self.chunks:
            yield self.extent.cut(self.n_reducers, reducer, chunk)

    def pages(self, reducer: int) -> Iterator[slice]:
        for segment in self.segments(reducer):
            start, stop = (
                self.padded if end == self.size else whole(end, self.page_bytes) if end else 0
                for end in (segment.start, segment.stop)
            )
            if start < stop:
                yield slice(start * ITEM_BYTES, stop * ITEM_BYTES)


def whole(size: int, page_bytes: int) -> int:
    """Return ``size`` float32 numbers rounded up to full pages, at least one."""
    page = page_bytes // ITEM_BYTES
    return max(1, -(-size // page)) * page


def divide(size: int, page_bytes: int, chunk_bytes: int, most_reducers: int) -> Division:
    """Return the division of a vector among at most ``most_reducers``; fewer if a segment would be less than a page.

    ``size`` may be an ``Extent``, whose places are heeded. ``chunk_bytes``: 0 for one chunk.
    """
    padded = whole(size, page_bytes)
    chunk = min(padded, whole(-(-chunk_bytes // ITEM_BYTES), page_bytes)) if chunk_bytes else padded
    if not isinstance(size, Extent) or size.places is None:
        return Division(size, page_bytes, chunk, max(1, min(most_reducers, chunk * ITEM_BYTES // page_bytes)))
    longest = max((stop - start for start, stop in pairwise(size.places)), default=0)
    chunk = max(chunk, whole(longest, page_bytes))
    n_reducers = max(1, min(most_reducers, chunk * ITEM_BYTES // page_bytes, size.most_parts))
    return Snapped(size, page_bytes, chunk, n_reducers, size)


def chosen(n_ranks: int, n_reducers: int) -> tuple[int, ...]:
    """Return the node ranks of the reducers: evenly spread, with the first rank among them."""
    return tuple(n_ranks * reducer // n_reducers for reducer in range(n_reducers))


def vectors(
    allocator: Allocator, division: Division, owner: int | None, n: int, role: str, own_row: int | None = None
) -> np.ndarray:
    """Return ``n`` float32 vectors shared by the ranks of a node, (n, size), each aligned to a page.

    This rank places and touches the pages of reducer ``owner``, and of ``own_row``. All ranks of the node must call.
    """
    row_bytes = division.padded * ITEM_BYTES
    own_slices = [
        slice(row * row_bytes + part.start, row * row_bytes + part.stop)
        for row in range(n)
        for part in (division.pages(owner) if owner is not None else ())
    ]
    if own_row is not None:
        own_slices.append(slice(own_row * row_bytes, (own_row + 1) * row_bytes))
    memory = allocator.shared(n * row_bytes, role, own_slices)
    return memory.view(np.float32).reshape(n, division.padded)[:, : division.size]
