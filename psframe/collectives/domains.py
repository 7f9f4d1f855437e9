"""Domains of a node's memory (:class:`Near`), the bytes that cross between them, and a chain of sums (:class:`Chain`).

A domain is a NUMA node, or a group of ranks that the user takes for one; :mod:`psframe.collectives.domain_sums` sums.
"""

from collections.abc import Sequence
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
PIECES = 4  # for each rank of the largest run, so that the next domain begins before the last piece


@dataclass(frozen=True)
class Near:
    """Domains of a node's ranks.

    Attributes
    ----------
    workers : tuple of int
        Domain of each worker; () if they are not known, or not to be told apart.
    reducers : tuple of int
        Domain of each reducer.
    shares : tuple of int
        Bytes that each reducer sums and updates.
    """

    workers: tuple[int, ...] = ()
    reducers: tuple[int, ...] = ()
    shares: tuple[int, ...] = ()

    @property
    def runs(self) -> list[slice]:
        """Slices of the workers: neighbours in one domain."""
        found, begin = [], 0
        for _, members in groupby(self.workers):
            end = begin + len(list(members))
            found.append(slice(begin, end))
            begin = end
        return found

    def beside(self, domain: int) -> int:
        """Return the bytes that are summed in other domains than this one."""
        return sum(share for share, other in zip(self.shares, self.reducers, strict=True) if other != domain)

    @property
    def at_once(self) -> int:
        """Bytes that cross between domains in a step whose workers write to where their gradients are summed."""
        return sum(map(self.beside, self.workers))

    @property
    def by_domain(self) -> int:
        """Bytes that cross in a step whose domains sum one after the other."""
        return (len(self.runs) - 1) * sum(self.shares) + self.beside(self.workers[-1])

    @property
    def pays(self) -> bool:
        """True if fewer bytes cross when domains sum one after the other, and they are many."""
        return len(self.runs) > 1 and sum(self.shares) >= LEAST_BYTES and self.by_domain < self.at_once


def near(
    asked: Domains, domains: Sequence[int], workers: slice, reducers: Sequence[int], shares: Sequence[int]
) -> Near:
    """Return the domains of a node's ranks.

    Parameters
    ----------
    asked : int or 'auto'
        Number of groups of neighbouring ranks to take for domains; ``auto`` or 1: ``domains``.
    domains : sequence of int
        NUMA node near each rank of the node; negative if there is none.
    workers : slice
        Workers among these ranks.
    reducers : sequence of int
        Reducers among these ranks.
    shares : sequence of int
        Bytes that each reducer sums.
    """
    known = list(domains)
    if asked != "auto" and asked > 1:
        known = [rank * asked // len(known) for rank in range(len(known))]
    if min(known, default=-1) < 0 or len(set(known)) == 1:
        return Near()
    return Near(tuple(known[workers]), tuple(known[rank] for rank in reducers), tuple(shares))


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

    def run_of(self, worker: int) -> int | None:
        """Return the number of a worker's run; None of what is no worker."""
        return next((n for n, run in enumerate(self.runs) if run.start <= worker < run.stop), None)

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
