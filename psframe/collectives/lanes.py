"""Exchange of ``hierarchical`` between nodes (:class:`Lane`): sums of parts, each sent once its gradients are complete.

A *lane* is one rank of every node, with a share of every bucket of the gradients. Nothing here blocks. MPI makes
progress only inside its own calls, so a computing rank calls :meth:`Lane.advance` now and then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from psframe import compiled
from psframe.cluster.deadline import all_done
from psframe.collectives.base import cut
from psframe.collectives.order import merges, stacked, widths
from psframe.record.traffic import Traffic

CHUNK = 1 << 15  # float32 numbers of a message, 128 kB; more if there would be more than
MAX_CHUNKS = 128  # such messages per step
SUM = 1  # tag of the sums; other messages use the lane's communicator too


class Lane:
    """Base class of a lane's exchange, on one of its ranks.

    Parameters
    ----------
    comm : MPI.Comm
        The lane's ranks, node by node.
    ready : callable
        ``ready(bucket)`` returns True if all workers of this node have completed the gradients of a bucket.
    total : ndarray of float32, shape (S,)
        Output: the sum over all workers; only this lane writes its parts.
    rows : sequence of ndarray of float32, shape (S,)
        The gradients of this node's workers.
    """

    def __init__(
        self,
        comm: MPI.Comm,
        ready: Callable[[int], bool],
        total: np.ndarray,
        rows: Sequence[np.ndarray],
        traffic: Traffic,
    ):
        self.comm, self.ready, self.total, self.rows, self.traffic = comm, ready, total, rows, traffic
        self.parts: list[tuple[int, slice]] = []
        #: number of parts summed on this node so far, and of those with the complete sum here, both in order
        self.summed = self.n_complete = 0

    def depart_in(self, parts: list[tuple[int, slice]]) -> None:
        """Set the parts of every step, each with its bucket, in the order in which they are sent."""
        self.parts = parts

    def begin(self) -> None:
        """Begin a step."""
        self.summed = self.n_complete = 0

    def advance(self) -> bool:
        """Progress without blocking; return True if all parts are complete."""
        raise NotImplementedError

    @property
    def lacks(self) -> int | None:
        """The bucket of this node that the lane waits for; None if it waits for other nodes."""
        waits = self.summed < len(self.parts) and not self.ready(self.parts[self.summed][0])
        return self.parts[self.summed][0] if waits else None

    @property
    def peers(self) -> list[int]:
        """The nodes that the lane waits for, if :attr:`lacks` is None."""
        return [node for node in range(self.comm.size) if node != self.comm.rank]

    @property
    def is_busy(self) -> bool:
        """True if messages may be in flight."""
        return self.summed > self.n_complete

    def end(self) -> bool:
        """Return True if all sends are complete; called once all parts are."""
        return True


class Combined(Lane):
    """Lane with an Iallreduce per part, in MPI's order of the sum."""

    def depart_in(self, parts: list[tuple[int, slice]]) -> None:
        super().depart_in(parts)
        self.means = [self._mean(where) for _, where in parts]
        self.requests: list[MPI.Request] = []

    def _mean(self, where: slice) -> Any:
        return compiled.elementwise.Mean([row[where] for row in self.rows]) if self.rows else None

    def begin(self) -> None:
        super().begin()
        self.requests.clear()

    def advance(self) -> bool:
        while self.summed < len(self.parts) and self.ready(self.parts[self.summed][0]):
            total, mean = self.total[self.parts[self.summed][1]], self.means[self.summed]
            if mean is None:
                total[:] = 0
            else:
                mean.over(1).into(total)
                self.traffic.sum(total.nbytes, len(self.rows))
            self.requests.append(self.comm.Iallreduce(MPI.IN_PLACE, total))
            self.traffic.allreduce(total.nbytes, self.comm.size)
            self.summed += 1
        while self.n_complete < len(self.requests) and self.requests[self.n_complete].Test():
            self.n_complete += 1
        return self.n_complete == len(self.parts)


@dataclass(frozen=True)
class Passing:
    """A part on its way up: sums received from the node below, sums computed here, sums sent to the node above."""

    arrives: list[np.ndarray]
    sums: list[tuple[np.ndarray, Any]]
    leaves: list[np.ndarray]


class Chain(Lane):
    """Lane with the canonical order: running sums go up from node to node; the last node sends the total back down.

    Parts are pipelined, some up while others go down. With full-duplex links, the exchange lasts as long as its bytes
    take over one link, whatever the number of nodes, plus the way of one part.

    Parameters
    ----------
    node, sizes
        Number of this node, and the ranks of each node.
    dedicated : bool
        True if rank 0 has no gradients.
    tree : bool
        True for the order of ``reproducible: any_workers``, which may need several running sums.
    zeros : callable
        ``zeros(shape)`` allocates the running sums.
    """

    def __init__(
        self,
        *lane: Any,
        node: int,
        sizes: Sequence[int],
        dedicated: bool,
        tree: bool,
        zeros: Callable[[tuple[int, int]], np.ndarray],
    ):
        super().__init__(*lane)
        self.node, self.last, n_workers = node, len(sizes) - 1, sum(sizes) - dedicated
        #: first node with gradients: a server alone on its node has none
        self.first = 1 if dedicated and sizes[0] == 1 else 0
        before = max(0, sum(sizes[:node]) - dedicated)
        self.n_running, self.order = self._order(before, n_workers) if tree else _fold(before, len(self.rows))
        n_sums = max(self.n_running, len(self.order) if node < self.last else 0) if node >= self.first else 0
        self.running = zeros((n_sums, len(self.total)))
        self.leaving: list[MPI.Request] = []

    def _order(self, before: int, n_workers: int) -> tuple[int, list[tuple[slice, Sequence[int] | None]]]:
        spans = widths(n_workers)
        running = [width for _, width in stacked(spans[:before])]
        rows = [*running, *spans[before : before + len(self.rows)]]
        return len(running), [(part, merges(rows[part])) for part, _ in stacked(rows)]

    def depart_in(self, parts: list[tuple[int, slice]]) -> None:
        super().depart_in(parts)
        self.passing = [self._passing(where) for _, where in parts] if self.node >= self.first else []

    def _passing(self, where: slice) -> Passing:
        running = [sums[where] for sums in self.running]
        rows = [*running[: self.n_running], *(row[where] for row in self.rows)]
        goals = running if self.node < self.last else [self.total[where]]
        # a sum to which nothing is added is forwarded as received
        sums = [
            (goals[number], compiled.elementwise.Mean(rows[part], order))
            for number, (part, order) in enumerate(self.order)
            if part != slice(number, number + 1) or number >= self.n_running or goals is not running
        ]
        return Passing(running[: self.n_running], sums, running[: len(self.order)] if self.node < self.last else [])

    def begin(self) -> None:
        super().begin()
        self.leaving.clear()
        # all have one tag: messages match in the order in which they are sent
        self.arriving = [[self._receive(total, -1) for total in passing.arrives] for passing in self.passing]
        above = self.parts if self.node < self.last else []
        self.returning = [self._receive(self.total[where], 1) for _, where in above]

    def _receive(self, numbers: np.ndarray, direction: int) -> MPI.Request:
        return self.comm.Irecv(numbers, self.node + direction, SUM)

    def _send(self, numbers: np.ndarray, direction: int) -> None:
        self.leaving.append(self.comm.Isend(numbers, self.node + direction, SUM))
        self.traffic.send(numbers.nbytes)

    def advance(self) -> bool:
        while self.summed < len(self.passing) and self.ready(self.parts[self.summed][0]):
            if not all_done(self.arriving[self.summed]):
                break
            self._add(self.passing[self.summed])
            self.summed += 1
        while self.n_complete < len(self.returning) and self.returning[self.n_complete].Test():
            self.traffic.receive(self.total[self.parts[self.n_complete][1]].nbytes)
            self._hand_down(self.n_complete)
            self.n_complete += 1
        return self.n_complete == len(self.parts)

    def _add(self, passing: Passing) -> None:
        self.traffic.receive(sum(total.nbytes for total in passing.arrives))
        for total, mean in passing.sums:
            mean.over(1).into(total)
            self.traffic.sum(total.nbytes, mean.n_rows)
        for total in passing.leaves:
            self._send(total, 1)
        if self.node == self.last:
            self._hand_down(self.n_complete)
            self.n_complete += 1

    def _hand_down(self, number: int) -> None:
        if self.node > 0:
            self._send(self.total[self.parts[number][1]], -1)

    @property
    def lacks(self) -> int | None:
        return super().lacks if self.passing else None

    @property
    def peers(self) -> list[int]:
        if self.n_complete == len(self.parts):  # only sends are pending, to both sides
            return [node for node in (self.node - 1, self.node + 1) if 0 <= node <= self.last]
        return [self.node - 1] if self.summed < len(self.passing) else [self.node + 1]

    @property
    def is_busy(self) -> bool:
        return self.n_running > 0 or self.summed > self.n_complete or not self.passing

    def end(self) -> bool:
        return all_done(self.leaving)


def _fold(before: int, n_own: int) -> tuple[int, list[tuple[slice, Sequence[int] | None]]]:
    """Return the number of sums from the node below, and the rows and their order for each sum sent on.

    The rows are those sums and the gradients of this node's ``n_own`` workers; ``before`` workers are on nodes below.
    """
    n_running = min(1, before)
    return n_running, [(slice(0, n_running + n_own), None)]


def shares(buckets: Sequence[slice], n_lanes: int, lane: int) -> list[tuple[int, slice]]:
    """Return a lane's parts of every bucket, as (bucket, slice of the vector)."""
    size = sum(bucket.stop - bucket.start for bucket in buckets)
    chunk = max(CHUNK, -(-size // MAX_CHUNKS))
    parts = []
    for number, bucket in enumerate(buckets):
        share = cut(bucket.stop - bucket.start, n_lanes, lane)
        for begin in range(bucket.start + share.start, bucket.start + share.stop, chunk):
            parts.append((number, slice(begin, min(begin + chunk, bucket.start + share.stop))))
    return parts
