"""``buffer`` (:class:`Buffer`): mpi4py's upper-case calls on NumPy arrays (Woo et al. 2020's "Python buffer").

Gradients leave bucket by bucket during backward; :mod:`psframe.collectives.bucket_exchanges` has the ways of a bucket.
"""

from collections.abc import Collection, Sequence
from typing import Any, Literal

import numpy as np
from mpi4py import MPI

from psframe.cluster.roles import Team
from psframe.collectives.base import BaseCollective, Overlap, Segments
from psframe.collectives.bucket_exchanges import Allreduced, BucketExchange, Context, Gathered, Reduced, ReduceScattered
from psframe.collectives.buckets import BUCKET_BYTES, BucketSends, cut_at_layers, least_of
from psframe.collectives.carriers import Buffers
from psframe.collectives.compression import Compressed
from psframe.collectives.traits import Traits
from psframe.config.registry import Count
from psframe.memory.allocator import Allocator
from psframe.memory.arena import ONE_COPY, Arena, Keeping, Layout
from psframe.record.clock import CLOCK
from psframe.record.trace import UNTRACED, Trace


class Buffer(BaseCollective):
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

    traits = Traits(supports_tree_sum=True, supports_sharding=True, broadcasts_any_size=True, keeps_tensors=True)

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
        self._reduces = gather != "gather" and not self._canonical
        self._bucket_bytes, self._compression = bucket_bytes, compression

    def _exchange_of(self, context: Context) -> BucketExchange:
        """Return the exchange of a bucket that fits the team and the order of sums."""
        if self._team.server:
            return Reduced(context) if self._reduces else Gathered(context)
        return ReduceScattered(context) if self._canonical else Allreduced(context)

    def encoded(self) -> BaseCollective:
        return self if self._compression == "none" else Compressed(self, self._compression, Buffers(self._comm))

    def arena(self, layout: Layout, n_state: int, keeping: Keeping = ONE_COPY, trace: Trace = UNTRACED) -> Arena:
        arena, self._trace = super().arena(layout, n_state, keeping), trace
        self._source, calls = arena.grads, (self.mean_of, self._allgather)
        self._exchange = self._exchange_of(
            Context(self._team, self._source, self._extent, self._allocator, self.traffic, *calls)
        )
        self._plan([slice(0, self._size)])
        return arena

    def _plan(self, buckets: list[slice]) -> None:
        self._exchange.plan(buckets)
        self._sends = BucketSends(buckets, self._exchange.begin, self._wait)

    @property
    def overlap(self) -> Overlap:
        return self

    def hook_layers(self, begins: Sequence[int]) -> Collection[int]:
        if not self._bucket_bytes:
            return ()
        allowed = self._extent.allowed(begins)
        buckets = cut_at_layers(allowed, self._size, least_of(self._bucket_bytes, self._size))
        self._plan(buckets)
        return range(len(begins)) if len(buckets) > 1 else ()

    def grads_ready(self, segment: slice) -> None:
        self._sends.start_ready(segment.start)

    @property
    def overlap_s(self) -> tuple[float, float]:
        return self._sends.times.flight_s, self._sends.times.hidden_s

    def clear(self) -> None:
        """Reset ``overlap_s``."""
        self._sends.clear()

    def nonfinite_workers(self, grads: np.ndarray) -> list[int]:
        return self._exchange.nonfinite_workers()

    def forget(self) -> None:
        self._exchange.forget()

    def broadcast(self, params: np.ndarray) -> None:
        if self._far:
            self._wait(self._comm.Ibcast(params))
        else:
            self._comm.Bcast(params)
        self.traffic.broadcast(params.nbytes, self._comm.size, self._comm.rank == 0)

    def _allgather(self, part: np.ndarray, counts: list[int], starts: list[int]) -> None:
        """Gather every rank's segment of a part of a vector on all ranks, in place. All ranks must call."""
        if self._far:
            self._wait(self._comm.Iallgatherv(MPI.IN_PLACE, [part, counts, starts, MPI.FLOAT]))
        else:
            self._comm.Allgatherv(MPI.IN_PLACE, [part, counts, starts, MPI.FLOAT])
        n_own = 4 * counts[self._comm.rank]
        self.traffic.send((self._comm.size - 1) * n_own)
        self.traffic.receive(part.nbytes - n_own)

    def gather_mean(self, grads: np.ndarray, divisor: int) -> Segments:
        computed_at = CLOCK.now()
        if grads is not self._source:  # a sync mode that exchanges a vector other than the gradients
            self._source[:] = grads
        self._sends.start_ready(0)
        for number in range(len(self._sends.buckets)):
            self._sends.wait_for(number)
            yield from self._exchange.segments(number, divisor)
        self._sends.end(computed_at, self._trace)

    allreduce_mean = gather_mean
