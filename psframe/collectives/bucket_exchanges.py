"""Exchanges of one bucket of gradients, for ``buffer``: members of the family :class:`BucketExchange`.

========================  ==============  ===================================================
exchange                  team            MPI
========================  ==============  ===================================================
:class:`Gathered`         one server      Igatherv, canonical sum
:class:`Reduced`          servers         Ireduce to each
:class:`Scattered`        servers         Ialltoallv to each, canonical sum
:class:`Allreduced`       none            Iallreduce
:class:`ReduceScattered`  none            Ialltoallv, canonical sum of a share, Allgatherv
========================  ==============  ===================================================
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from mpi4py import MPI

from psframe import compiled
from psframe.cluster.deadline import Request, all_done
from psframe.cluster.roles import Team
from psframe.collectives.base import Segments
from psframe.collectives.buckets import MAX_BUCKETS
from psframe.collectives.carriers import of_rows
from psframe.collectives.shares import ANYWHERE, Division
from psframe.memory.allocator import Allocator
from psframe.memory.extent import Extent
from psframe.record.traffic import Traffic


@dataclass(frozen=True)
class Context:
    """Components of an exchange: ``source`` (S,) is the vector exchanged, ``extent`` its length and the places at which
    updates may be cut; the callables are the collective's.
    """

    team: Team
    source: np.ndarray
    extent: Extent
    allocator: Allocator
    traffic: Traffic
    mean_of: Callable[[Sequence[np.ndarray]], Any]
    allgather: Callable[[np.ndarray, list[int], list[int]], None]


class BucketExchange:
    """Base class. Members allocate receive buffers on construction, and define at least ``_rows`` and :meth:`begin`.

    Attributes
    ----------
    buckets : sequence of slice
        As planned.
    """

    def __init__(self, context: Context):
        self._context, self._team, self._comm = context, context.team, context.team.comm
        self._source, self._traffic = context.source, context.traffic

    def plan(self, buckets: Sequence[slice]) -> None:
        """Prepare the exchange of these buckets."""
        self.buckets = buckets
        mean_of, applies = self._context.mean_of, self._team.applies_updates
        self._means: list[Any] = [mean_of(self._rows(i)) if applies else None for i in range(len(buckets))]

    def _rows(self, number: int) -> Sequence[np.ndarray]:
        """Return the vectors to sum for the part of a bucket that this rank updates."""
        raise NotImplementedError

    def begin(self, number: int) -> Request:
        """Start the exchange of a bucket. All ranks must call, in the same order."""
        raise NotImplementedError

    def segments(self, number: int, divisor: int) -> Segments:
        """Yield the segments of an arrived bucket that this rank must update, with their mean gradients."""
        if self._means[number] is not None:
            yield self._segment(number), self._means[number].over(divisor)

    def _segment(self, number: int) -> slice:
        """Return the part of a bucket that this rank updates."""
        return self.buckets[number]

    def nonfinite_workers(self) -> list[int]:
        """Return the workers whose gradients of the last step this rank knows to be non-finite."""
        return self._own_number(self._team.worker is None or compiled.elementwise.is_finite(self._source))

    def _own_number(self, finite: bool) -> list[int]:
        return [] if finite or self._team.worker is None else [self._team.worker]

    def forget(self) -> None:
        """Discard what was seen of the last gradients."""


class Gathered(BucketExchange):
    """Exchange in which rank 0 receives the gradients of all workers, and sums them."""

    def __init__(self, context: Context):
        super().__init__(context)
        self._n_rows = self._comm.size - 1 if self._comm.rank == 0 else 0
        self._memory = context.allocator.zeros(self._n_rows * len(context.source), np.float32, "exchange")

    def _received(self, number: int) -> np.ndarray:
        """Return the received gradients of a bucket, by rank; contiguous, so that MPI's offsets stay small."""
        bucket, n = self.buckets[number], self._n_rows
        return self._memory[n * bucket.start : n * bucket.stop].reshape(n, bucket.stop - bucket.start)

    def _rows(self, number: int) -> Sequence[np.ndarray]:
        # a colocated server's own gradients are read in place
        own = [self._source[self.buckets[number]]] if self._team.worker is not None else []
        return [*own, *self._received(number)]

    def begin(self, number: int) -> Request:
        part = self._source[self.buckets[number]]
        if self._comm.rank:
            self._traffic.send(part.nbytes)
            return self._comm.Igatherv(part, None)
        received = self._received(number)
        self._traffic.receive(received.nbytes)
        return self._comm.Igatherv([part, 0, MPI.FLOAT], of_rows(received))


class Allreduced(BucketExchange):
    """Exchange in which MPI sums over all workers, in an order of its own."""

    finite = True  # False if this worker's gradients were not, which MPI overwrites

    def _rows(self, number: int) -> Sequence[np.ndarray]:
        return [self._source[self.buckets[number]]]

    def begin(self, number: int) -> Request:
        part = self._source[self.buckets[number]]
        self.finite &= compiled.elementwise.is_finite(part)
        self._traffic.allreduce(part.nbytes, self._comm.size)
        return self._comm.Iallreduce(MPI.IN_PLACE, part)

    def nonfinite_workers(self) -> list[int]:
        return self._own_number(self.finite)

    def forget(self) -> None:
        self.finite = True


class ByOwner(BucketExchange):
    """Base class of the exchanges that divide a bucket among owners: the servers; without servers, all ranks.

    Parameters
    ----------
    n_rows : int
        Vectors that this rank receives for its slice.
    """

    def __init__(self, context: Context, n_rows: int):
        super().__init__(context)
        self._owners, self._n_rows = self._team.servers or range(self._comm.size), n_rows
        # without servers every worker updates all, of which each has summed a part
        self._extent, n = context.extent if self._team.servers else ANYWHERE, len(self._owners)
        if self._extent.places is None:
            # an owner's slices of all buckets may have one number a bucket more than its slice of the vector would
            longest = -(-len(context.source) // n) + MAX_BUCKETS
        else:
            longest = max(part.stop - part.start for part in (self._extent.cut(n, number) for number in range(n)))
        self._memory = context.allocator.zeros(n_rows * longest, np.float32, "exchange")

    def plan(self, buckets: Sequence[slice]) -> None:
        self.shares: list[Division] = []
        n_used = 0
        for bucket in buckets:
            memory = self._memory[n_used:]
            self.shares.append(Division(bucket, self._owners, self._team, memory, self._n_rows, self._extent))
            n_used += self.shares[-1].rows.size
        super().plan(buckets)

    def _segment(self, number: int) -> slice:
        return self.shares[number].own


class Scattered(ByOwner):
    """Exchange in which every owner receives its slice of the gradients from all workers, and sums them.

    With k owners an owner receives a k-th of what a single one would.
    """

    def __init__(self, context: Context):
        super().__init__(context, context.team.n_workers if context.team.applies_updates else 0)

    def _rows(self, number: int) -> Sequence[np.ndarray]:
        return list(self.shares[number].rows)

    def begin(self, number: int) -> Request:
        share, rank = self.shares[number], self._comm.rank
        self._traffic.send(4 * (sum(share.sent) - share.sent[rank]))
        self._traffic.receive(4 * (sum(share.received) - share.received[rank]))
        return self._comm.Ialltoallv(
            [self._source[share.bucket], share.sent, share.starts, MPI.FLOAT],
            [share.rows, share.received, share.offsets, MPI.FLOAT],
        )


class ReduceScattered(Scattered):
    """Exchange in which every worker sums its slice, and then receives the sums of the others."""

    def segments(self, number: int, divisor: int) -> Segments:
        share = self.shares[number]
        part, own = self._source[share.bucket], self._source[share.own]
        self._means[number].over(divisor).into(own)
        self._traffic.sum(own.nbytes, self._team.n_workers)
        self._context.allgather(part, share.counts, share.starts)
        yield share.bucket, part

    def nonfinite_workers(self) -> list[int]:
        rows = [(worker, row) for share in self.shares for worker, row in enumerate(share.rows)]
        return sorted({worker for worker, row in rows if not compiled.elementwise.is_finite(row)})


class Reduced(ByOwner):
    """Exchange in which MPI sums on the way to each server, in an order of its own."""

    finite = True  # on servers: False if their own gradients were not, which MPI overwrites

    def __init__(self, context: Context):
        super().__init__(context, 0)

    def _rows(self, number: int) -> Sequence[np.ndarray]:
        return [self._source[self.shares[number].own]]

    def begin(self, number: int) -> Request:
        share, requests, rank = self.shares[number], list[MPI.Request](), self._comm.rank
        if self._team.worker is None:
            self._source[share.bucket] = 0
        elif self._team.applies_updates:
            self.finite &= compiled.elementwise.is_finite(self._source[share.bucket])
        for server, segment in share.segments.items():
            part = self._source[segment]
            if server == rank:
                self._traffic.receive((self._comm.size - 1) * part.nbytes)
                requests.append(self._comm.Ireduce(MPI.IN_PLACE, part, root=server))
            else:
                self._traffic.send(part.nbytes)
                requests.append(self._comm.Ireduce(part, None, root=server))
        return requests[0] if len(requests) == 1 else RequestGroup(requests)

    def nonfinite_workers(self) -> list[int]:
        return self._own_number(self.finite) if self._team.applies_updates else super().nonfinite_workers()

    def forget(self) -> None:
        self.finite = True


class RequestGroup:
    """Several MPI requests as one."""

    def __init__(self, requests: list[MPI.Request]):
        self.requests = requests

    def Test(self) -> bool:
        return all_done(self.requests)

    def Wait(self) -> None:
        for request in self.requests:
            request.Wait()
