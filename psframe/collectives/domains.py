"""Domains of a node's memory, the bytes that cross between them (:class:`Near`), and a chain of sums (:class:`Chain`).

A domain is a NUMA node, or a group of ranks that the user takes for one; :mod:`psframe.collectives.domain_sums` sums.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Literal

from psframe.collectives.base import cut
from psframe.collectives.segments import ITEM_BYTES, whole
from psframe.errors import UserError

Domains = Literal["auto"] | int

#: of a vector; below, the waits of a chain are thought to cost more than remote memory (not measured)
LEAST_BYTES = 1 << 20
#: vectors that each domain moves more: it writes a sum, which the next one reads
MOVED = 2
PIECES = 4  # for each rank of the largest run, so that the next domain begins before the last piece


def runs_of(domains: Sequence[int]) -> list[slice]:
    """Return the slices of neighbours in one domain."""
    found, begin = [], 0
    for _, members in groupby(domains):
        end = begin + len(list(members))
        found.append(slice(begin, end))
        begin = end
    return found


@dataclass(frozen=True)
class Near:
    """NUMA nodes near the ranks of a node.

    Attributes
    ----------
    ranks : tuple of int
        NUMA node near each rank; () if there is none near one of them.
    n_servers : int
        Ranks before the first worker.
    """

    ranks: tuple[int, ...]
    n_servers: int

    @property
    def runs(self) -> list[slice]:
        """Slices of the workers: neighbours near one NUMA node."""
        return runs_of(self.ranks[self.n_servers :])

    def crosses(self, one: int, other: int) -> bool:
        """Return True if two ranks are near different NUMA nodes."""
        return bool(self.ranks) and self.ranks[one] != self.ranks[other]

    def beside(self, rank: int, shares: Mapping[int, int]) -> int:
        """Return the bytes that are summed near other NUMA nodes than this rank's; ``shares`` are each reducer's."""
        return sum(share for reducer, share in shares.items() if self.crosses(rank, reducer))

    def at_once(self, shares: Mapping[int, int]) -> int:
        """Return the bytes that cross in a step whose workers write to where their gradients are summed."""
        return sum(self.beside(rank, shares) for rank in range(self.n_servers, len(self.ranks)))

    def by_domain(self, shares: Mapping[int, int]) -> int:
        """Return the bytes that cross in a step whose NUMA nodes sum one after the other."""
        return (len(self.runs) - 1) * sum(shares.values()) + self.beside(len(self.ranks) - 1, shares)

    def pays(self, n_bytes: int, reducers: Sequence[int]) -> bool:
        """Return True if a vector of ``n_bytes`` should be summed from NUMA node to NUMA node.

        That is so if as many bytes less cross as are moved more, since each node writes a sum which the next one reads.
        Reducers are reckoned with equal shares, so that pages of another size change nothing.
        """
        if len(self.runs) < 2 or n_bytes < LEAST_BYTES:
            return False
        shares = dict.fromkeys(reducers, n_bytes // len(reducers))
        return self.at_once(shares) - self.by_domain(shares) >= MOVED * len(self.runs) * n_bytes


def groups(n_ranks: int, n_groups: int) -> list[int]:
    """Return the group of each rank, of so many nearly equal ones of neighbours."""
    return [rank * n_groups // n_ranks for rank in range(n_ranks)]


def need_plain(asked: Domains, keeps_order: bool, is_chunked: bool, is_group: bool) -> None:
    """Raise UserError if domains are asked for where gradients cannot be summed one domain after the other."""
    if asked in ("auto", 1):
        return
    for fails, needs, fix in (
        (not keeps_order, "a sum in worker order, got train.reproducible=any_workers", "leave out that"),
        (is_chunked, "gradients in the place of their sum, got chunks", "give collective.chunk_bytes=0"),
        (is_group, "all ranks of a node, got groups of them", "leave out collective.domains"),
    ):
        if fails:
            raise UserError(f"collective.domains={asked} needs {needs}; {fix}, or give domains=auto")


@dataclass(frozen=True)
class Turn:
    """One piece of the vector that a worker adds.

    Attributes
    ----------
    worker : int
    number : int
        Number of the piece among those of this worker, from 1.
    of : int
        How many the worker has.
    """

    worker: int
    number: int
    of: int


@dataclass(frozen=True)
class Chain:
    """Pieces of a vector, which each run of workers adds in the same order, its workers in turn.

    Attributes
    ----------
    size : int
        Length of the vector.
    page_bytes : int
        Pieces are of full pages; the last one ends with the vector.
    runs : list of slice
        Workers that are neighbours in one domain.
    """

    size: int
    page_bytes: int
    runs: list[slice]

    @property
    def padded(self) -> int:
        """Length of the vector in memory, rounded up to full pages."""
        return whole(self.size, self.page_bytes)

    @cached_property
    def pieces(self) -> list[slice]:
        """Slices of the vector."""
        page, n = self.page_bytes // ITEM_BYTES, PIECES * max(run.stop - run.start for run in self.runs)
        pages = [cut(self.padded // page, n, number) for number in range(n)]
        return [slice(p.start * page, min(p.stop * page, self.size)) for p in pages if p.start < p.stop]

    @property
    def n_workers(self) -> int:
        """Number of workers in all runs."""
        return self.runs[-1].stop

    def run_of(self, worker: int) -> int:
        """Return the number of a worker's run; 0 of what is no worker, and adds nothing."""
        return next((n for n, run in enumerate(self.runs) if run.start <= worker < run.stop), 0)

    def turn(self, run: int, piece: int) -> Turn:
        """Return who adds a piece, by its number, in a run."""
        first, n = self.runs[run].start, self.runs[run].stop - self.runs[run].start
        return Turn(first + piece % n, piece // n + 1, len(range(piece % n, len(self.pieces), n)))

    def of(self, run: int, worker: int) -> list[int]:
        """Return the numbers of the pieces that a worker adds in its run, in order."""
        return [piece for piece in range(len(self.pieces)) if self.turn(run, piece).worker == worker]

    def over(self, segment: slice) -> list[Turn]:
        """Return the turns of the last run that a segment of the whole sum waits for."""
        over = (n for n, p in enumerate(self.pieces) if max(p.start, segment.start) < min(p.stop, segment.stop))
        return [self.turn(len(self.runs) - 1, piece) for piece in over]
