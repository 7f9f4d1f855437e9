"""Which rank of a node sums which part of the vector, and how the vectors lie in memory that the node shares."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from psframe.collectives.base import cut
from psframe.memory.allocator import Allocator

ITEM_BYTES = 4  # float32


@dataclass(frozen=True)
class Division:
    """A vector of ``size`` numbers cut into chunks, and each chunk into one segment a reducer, all in whole pages.

    Attributes
    ----------
    size : int
        Numbers of the vector.
    page_bytes : int
    chunk : int
        Numbers of a chunk, in whole pages; the last one may be shorter.
    n_reducers : int
    """

    size: int
    page_bytes: int
    chunk: int
    n_reducers: int

    @property
    def padded(self) -> int:
        """Numbers that the vector takes in memory: whole pages."""
        return whole(self.size, self.page_bytes)

    @property
    def n_chunks(self) -> int:
        return max(1, -(-self.padded // self.chunk))

    def within(self, reducer: int) -> slice:
        """Return the reducer's numbers within a chunk."""
        page = self.page_bytes // ITEM_BYTES
        pages = cut(self.chunk // page, self.n_reducers, reducer)
        return slice(pages.start * page, pages.stop * page)

    def segments(self, reducer: int) -> Iterator[slice]:
        """Yield the reducer's segment of every chunk, without what lies behind the vector's end; some may be empty."""
        part = self.within(reducer)
        for begin in range(0, self.n_chunks * self.chunk, self.chunk):
            start, stop = min(begin + part.start, self.size), min(begin + part.stop, self.size)
            yield slice(start, stop)

    def pages(self, reducer: int) -> Iterator[slice]:
        """Yield the bytes of a vector in memory that are the reducer's."""
        part = self.within(reducer)
        for begin in range(0, self.padded, self.chunk):
            start, stop = min(begin + part.start, self.padded), min(begin + part.stop, self.padded)
            if start < stop:
                yield slice(start * ITEM_BYTES, stop * ITEM_BYTES)


def whole(size: int, page_bytes: int) -> int:
    """Return ``size`` numbers up to whole pages."""
    page = page_bytes // ITEM_BYTES
    return max(1, -(-size // page)) * page


def divide(size: int, page_bytes: int, chunk_bytes: int, most_reducers: int) -> Division:
    """Return how to cut a vector for at most so many reducers; fewer, where a segment would fall below a page.

    ``chunk_bytes``: 0 for one chunk.
    """
    padded = whole(size, page_bytes)
    chunk = min(padded, whole(-(-chunk_bytes // ITEM_BYTES), page_bytes)) if chunk_bytes else padded
    return Division(size, page_bytes, chunk, max(1, min(most_reducers, chunk * ITEM_BYTES // page_bytes)))


def chosen(n_ranks: int, n_reducers: int) -> tuple[int, ...]:
    """Return which of a node's ranks are its reducers: evenly spread over it, its first rank among them."""
    return tuple(n_ranks * reducer // n_reducers for reducer in range(n_reducers))


def vectors(allocator: Allocator, division: Division, owner: int | None, n: int, role: str) -> np.ndarray:
    """Return ``n`` float32 vectors that the ranks of a node share, (n, size), each from the first byte of a page.

    The pages of segment ``owner`` are this rank's to place and to touch. All ranks of the node must call.
    """
    mine = [
        slice(row * division.padded * ITEM_BYTES + part.start, row * division.padded * ITEM_BYTES + part.stop)
        for row in range(n)
        for part in (division.pages(owner) if owner is not None else ())
    ]
    memory = allocator.shared(n * division.padded * ITEM_BYTES, role, mine)
    return memory.view(np.float32).reshape(n, division.padded)[:, : division.size]
