"""``buffer`` (:class:`Buffer`): mpi4py's upper-case calls on NumPy arrays (Woo et al. 2020's "Python buffer")."""

from collections.abc import Collection, Iterator, Sequence
from time import perf_counter
from typing import Any, Literal

import numpy as np
from mpi4py import MPI

from psframe import compiled
from psframe.cluster.roles import Team
from psframe.collectives.base import Base, Overlap, Segments, cut
from psframe.collectives.buckets import BUCKET_BYTES, MAX_BUCKETS, Departures, cut_at_layers, least_of
from psframe.collectives.carriers import Buffers
from psframe.collectives.compression import Compressed
from psframe.collectives.traits import Traits
from psframe.config.registry import Count
from psframe.errors import UserError
from psframe.memory.allocator import Allocator
from psframe.memory.arena import ONE_COPY, Arena, Keeping, Layout
from psframe.record.trace import UNTRACED, Trace


class Buffer(Base):
    """Bcast and Igatherv or Ireduce around rank 0; or Iallreduce, or Ialltoallv and Allgatherv.

    Parameters
    ----------
    gather : str
        ``gather``: the server receives all gradients and sums them; ``reduce``: MPI sums them on the way, which needs
        ``reproducible: none``; ``auto``: ``reduce`` if allowed.
    bucket_bytes : int
        Least bytes of a bucket of gradients sent during backward; 0: all at once, after it.
    compression : str or mapping
        See :mod:`psframe.collectives.compression`.
    """

    traits = Traits(supports_tree_sum=True, supports_sharding=True)

    def __init__(
        self,
        team: Team,
        size: int,
        allocator: Allocator,
        reproducible: str,
        *,
        gather: Literal["auto", "gather", "reduce"] = "auto",
        bucket_bytes: Count = BUCKET_BYTES,
        compression: str | dict[str, Any] = "none",
    ):
        super().__init__(team, size, allocator, reproducible)
        if gather == "reduce" and self._canonical:
            raise UserError(
                f"collective.gather: reduce lets MPI choose the order of a sum, got train.reproducible={reproducible}; "
                "give train.reproducible=none or collective.gather=gather"
            )
        self.reduces = gather != "gather" and not self._canonical
        self.bucket_bytes, self.compression = bucket_bytes, compression
        self.departures = Departures([], self._gather, self._wait)
        self.finite = True  # False if this worker's gradients were not, which MPI overwrites
        if compression == "none":
            self._receive()

    def _receive(self) -> None:
        """Allocate the receive buffers of gradients."""
        n, rank = self._comm.size, self._comm.rank
        if self._team.server:
            rows = n - 1 if rank == 0 and not self.reduces else 0
            self.received = self._allocator.zeros((rows, self._size), np.float32, "exchange")
        elif self._canonical:
            longest = max(cut(self._size, n, worker).stop - cut(self._size, n, worker).start for worker in range(n))
            # rounding may make the part of each bucket one number longer than its share of the vector
            self.pieces = self._allocator.zeros((n, longest + MAX_BUCKETS), np.float32, "exchange")

    def encoded(self) -> Base:
        return self if self.compression == "none" else Compressed(self, self.compression, Buffers(self._comm))

    def arena(self, layout: Layout, n_state: int, keeping: Keeping = ONE_COPY, trace: Trace = UNTRACED) -> Arena:
        self.vectors, self.trace = super().arena(layout, n_state, keeping), trace
        if self.compression == "none":
            self._plan_buckets([slice(0, self._size)])
        return self.vectors

    @property
    def overlap(self) -> Overlap:
        return self

    def hook_layers(self, begins: Sequence[int]) -> Collection[int]:
        if not self.bucket_bytes or self.compression != "none":
            return ()
        buckets = cut_at_layers(begins, self._size, least_of(self.bucket_bytes, self._size))
        self._plan_buckets(buckets)
        return range(len(begins)) if len(buckets) > 1 else ()

    def _plan_buckets(self, buckets: list[slice]) -> None:
        """Prepare the exchange of every bucket: send and receive buffers, and the means over received rows."""
        begin = self._gather if self._team.server else self._scatter if self._canonical else self._allreduce
        self.departures = Departures(buckets, begin, self._wait)
        self.source = self.vectors.grads
        self.parts: list[tuple[list[int], list[int], np.ndarray]] = []
        scatters = not self._team.server and self._canonical
        self.means = [self._scattered(bucket) if scatters else self._mean(bucket) for bucket in buckets]

    def _mean(self, bucket: slice) -> Any:
        """Return the mean over received and own gradients; None on ranks that apply no updates."""
        if not self._team.applies_updates:
            return None
        own_rows = [] if self._team.server == "dedicated" and not self.reduces else [self.source[bucket]]
        rows = [*own_rows, *(self.received[:, bucket] if self._team.server else ())]
        return self.mean_of(rows)

    def _scattered(self, bucket: slice) -> Any:
        """Return the mean over all workers' parts of this worker's segment of a bucket."""
        n, n_used = self._comm.size, sum(rows.size for _, _, rows in self.parts)
        segments = [cut(bucket.stop - bucket.start, n, worker) for worker in range(n)]
        counts = [part.stop - part.start for part in segments]
        rows = self.pieces.reshape(-1)[n_used:][: n * counts[self._comm.rank]].reshape(n, -1)
        self.parts.append((counts, [part.start for part in segments], rows))
        return self.mean_of(list(rows))

    def _look(self, part: np.ndarray) -> None:
        self.finite &= compiled.elementwise.is_finite(part)

    def nonfinite_workers(self, grads: np.ndarray) -> list[int]:
        if self._team.server:
            if self.reduces and self._comm.rank == 0:
                return [] if self.finite or self._team.worker is None else [self._team.worker]
            return super().nonfinite_workers(grads)
        if not self._canonical:
            return [] if self.finite else [self._comm.rank]
        faulty = {i for *_, rows in self.parts for i, row in enumerate(rows) if not compiled.elementwise.is_finite(row)}
        return sorted(faulty)

    def forget(self) -> None:
        self.finite = True

    def clear(self) -> None:
        super().clear()
        self.departures.clear()

    @property
    def overlap_s(self) -> tuple[float, float]:
        return self.departures.flights.flight_s, self.departures.flights.hidden_s

    def grads_ready(self, segment: slice) -> None:
        self.departures.leave(segment.start)

    def broadcast(self, params: np.ndarray) -> None:
        if self._far:
            self._wait(self._comm.Ibcast(params))
        else:
            self._comm.Bcast(params)
        self.traffic.broadcast(params.nbytes, self._comm.size, self._comm.rank == 0)

    def _arriving(self, grads: np.ndarray) -> Iterator[tuple[int, slice]]:
        """Send all gradients, and yield the number and slice of each bucket once it is complete."""
        computed_at = perf_counter()
        if grads is not self.source:  # a sync mode that exchanges a vector other than the gradients
            self.source[:] = grads
        if self.reduces and self._team.worker is None:
            self.source[:] = 0
        self.departures.leave(0)
        for number in range(len(self.departures.buckets)):
            yield number, self.departures.arrive(number)
        self.departures.end(computed_at, self.trace)

    def gather_mean(self, grads: np.ndarray, n_samples: int) -> Segments:
        for number, bucket in self._arriving(grads):
            if not self._team.server and self._canonical:
                self._sum(number, bucket, n_samples)
                yield bucket, self.source[bucket]
            elif self._team.applies_updates:
                yield bucket, self.means[number].over(n_samples)

    allreduce_mean = gather_mean

    def _gather(self, number: int) -> MPI.Request:
        bucket, n = self.departures.buckets[number], self._comm.size
        part = self.source[bucket]
        if self._comm.rank:
            self.traffic.send(part.nbytes)
        else:
            self.traffic.receive((n - 1) * part.nbytes)
        if self.reduces:
            if self._comm.rank:
                return self._comm.Ireduce(part, None)
            self._look(part)
            return self._comm.Ireduce(MPI.IN_PLACE, part)
        if self._comm.rank:
            return self._comm.Igatherv(part, None)
        # rank 0 sends nothing to itself: a colocated server's own sum is read in place
        counts = [0] + [len(part)] * (n - 1)
        starts = [0] + [row * self._size + bucket.start for row in range(n - 1)]
        return self._comm.Igatherv([part, 0, MPI.FLOAT], [self.received, counts, starts, MPI.FLOAT])

    def _allreduce(self, number: int) -> MPI.Request:
        part = self.source[self.departures.buckets[number]]
        self.traffic.allreduce(part.nbytes, self._comm.size)
        self._look(part)
        return self._comm.Iallreduce(MPI.IN_PLACE, part)

    def _scatter(self, number: int) -> MPI.Request:
        """Send every worker its segment of a bucket: each receives W parts of S / W, never W full vectors."""
        counts, starts, rows = self.parts[number]
        n_own, n = counts[self._comm.rank], self._comm.size
        self.traffic.send(4 * (sum(counts) - n_own))
        self.traffic.receive(4 * (n - 1) * n_own)
        part = self.source[self.departures.buckets[number]]
        return self._comm.Ialltoallv([part, counts, starts, MPI.FLOAT], [rows, [n_own] * n, None, MPI.FLOAT])

    def _sum(self, number: int, bucket: slice, n_samples: int) -> None:
        """Sum this worker's segment of a bucket in the canonical order, and gather the sums of all others."""
        counts, starts, _ = self.parts[number]
        part, rank, n = self.source[bucket], self._comm.rank, self._comm.size
        segment = part[starts[rank] : starts[rank] + counts[rank]]
        self.means[number].over(n_samples).into(segment)
        self.traffic.sum(segment.nbytes, n)
        if self._far:
            self._wait(self._comm.Iallgatherv(MPI.IN_PLACE, [part, counts, starts, MPI.FLOAT]))
        else:
            self._comm.Allgatherv(MPI.IN_PLACE, [part, counts, starts, MPI.FLOAT])
        self.traffic.send((n - 1) * segment.nbytes)
        self.traffic.receive(part.nbytes - segment.nbytes)
