"""``hierarchical`` (:class:`Hierarchical`): shared memory inside each node, MPI among a few leaders of each node.

Every node has one copy of parameters and optimizer state. Nodes exchange sums of gradients, bucket by bucket during
backward (:mod:`psframe.collectives.lanes`). Every node updates its own copy, to the same bits, since the update is
elementwise.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import Any, Literal

import numpy as np

from psframe import compiled
from psframe.cluster.counters import WRAP
from psframe.cluster.gates import READY, SUMMED
from psframe.cluster.roles import Team
from psframe.collectives.base import Overlap, Segments
from psframe.collectives.buckets import MAX_BUCKETS, Flights, cut_at_layers, least_of
from psframe.collectives.carriers import Buffers
from psframe.collectives.compression import forget, sum_between_nodes, warm
from psframe.collectives.lanes import Chain, Combined, Lane, shares
from psframe.collectives.shared import Shared
from psframe.config.registry import Count
from psframe.memory.allocator import Allocator, shared_block
from psframe.memory.arena import ONE_COPY, Arena, Keeping, Layout
from psframe.record.trace import UNTRACED, Trace

BUCKET_BYTES = 1 << 17  # a millisecond at 1 Gb/s, a few times a message's latency on faster links
RANKS_A_LEADER = 8  # of a node, under ``leaders: auto``
PROGRESS_S = 2e-4  # between two MPI calls of a rank that waits for its node while messages are in flight


class Hierarchical(Shared):
    """:class:`Shared` on one node; on several, leaders exchange sums.

    Parameters
    ----------
    reducers, fallback
        As in :class:`Shared`; ``server`` is each node's first rank.
    leaders : int or 'auto'
        Ranks per node that sum for it and exchange with the other nodes, each with a share of every bucket; at most the
        ranks of the smallest node. ``auto``: one for every eight ranks of the smallest node.
    bucket_bytes : int
        Least bytes of a bucket of gradients sent during backward; 0: all at once, after it.
    compression : str or mapping
        Codec between nodes; see :mod:`psframe.collectives.compression`. A single leader then sends all gradients,
        after backward.
    """

    def __init__(
        self,
        team: Team,
        size: int,
        allocator: Allocator,
        reproducible: str,
        *,
        reducers: Literal["server", "cores", "all"] = "cores",
        leaders: Count | Literal["auto"] = "auto",
        bucket_bytes: Count = BUCKET_BYTES,
        compression: str | dict[str, Any] = "none",
        fallback: Literal["none", "buffer"] = "none",
    ):
        super().__init__(team, size, allocator, reproducible, reducers=reducers, chunk_bytes=0, fallback=fallback)
        smallest = min(self.cluster.sizes)
        n_wanted = -(-smallest // RANKS_A_LEADER) if leaders == "auto" else max(1, leaders)
        self.n_lanes = min(n_wanted, smallest) if compression == "none" else 1
        self.leading = self.meeting.among(tuple(range(self.n_lanes)))
        self.bucket_bytes, self.codec = bucket_bytes, compression
        self.traits = replace(self.traits, exact=compression == "none")
        self.lane: Lane | None = None
        self.compressed = None
        if self._far and self.leading.mine and compression != "none":
            self.compressed = sum_between_nodes(Buffers(self.cluster.lane), size, compression, allocator, self.traffic)
        self.buckets, self.flights = [slice(0, size)], Flights(1)
        self.begun, self.n_left, self.n_steps = False, 0, 0

    def check(self, n_nodes: int) -> None:
        pass

    def arena(self, layout: Layout, n_state: int, keeping: Keeping = ONE_COPY, trace: Trace = UNTRACED) -> Arena:
        arena, self.trace = super().arena(layout, n_state, keeping), trace
        if self._far:
            self.total = self._vectors(1, "exchange")[0]
            n_bytes = MAX_BUCKETS * compiled.sync.Counters.EACH
            memory = shared_block(self._allocator, n_bytes, "exchange", self.cluster.link.leads)
            #: by bucket: number of complete gradients of this node's workers, over all steps
            self.departed = compiled.sync.Counters(memory, MAX_BUCKETS)
            #: this rank's segment of the sum over its node (local), and of the mean over all workers (means)
            self.local = [(segment, mean, self.total[segment]) for segment, mean in self.means]
            self.means = [(segment, self.mean_of([self.total[segment]])) for segment, _ in self.means]
            if self.leading.mine and self.codec == "none":
                self.lane = self._lane()
            self._plan_buckets([slice(0, self._size)])
        return arena

    def mean_of(self, rows: Sequence[np.ndarray]) -> Any:
        if self._far:  # this node's rows only, for a codec, or the sum over all nodes
            return compiled.elementwise.Mean(rows) if rows else None
        return super().mean_of(rows)

    def _lane(self) -> Lane:
        parts = (self.cluster.lane, self._has_left, self.total, self.rows, self.traffic)
        if not self._canonical:
            return Combined(*parts)
        return Chain(
            *parts,
            node=self.cluster.node,
            sizes=self.cluster.sizes,
            dedicated=self._team.server == "dedicated",
            tree=self._merges is not None,
            zeros=lambda shape: self._allocator.zeros(shape, np.float32, "exchange"),
        )

    @property
    def overlap(self) -> Overlap:
        return self

    def hook_layers(self, begins: Sequence[int]) -> Collection[int]:
        if not (self._far and self.bucket_bytes and self.codec == "none"):
            return ()
        self._plan_buckets(cut_at_layers(begins, self._size, least_of(self.bucket_bytes, self._size)))
        return range(len(begins)) if len(self.buckets) > 1 else ()

    def _plan_buckets(self, buckets: list[slice]) -> None:
        self.buckets, self.flights = buckets, Flights(len(buckets))
        if self.lane:
            self.lane.depart_in(shares(buckets, self.n_lanes, self.cluster.node_rank))

    def warm(self) -> None:
        if self.compressed is not None:
            warm(self.codec)

    def forget(self) -> None:
        for codec in self.compressed.every_codec if self.compressed is not None else ():
            forget(codec)

    def clear(self) -> None:
        super().clear()
        self.flights.clear()

    @property
    def overlap_s(self) -> tuple[float, float]:
        return self.flights.flight_s, self.flights.hidden_s

    def broadcast(self, params: np.ndarray) -> None:
        if self._far and not self.current and self.cluster.link.leads:
            self.cluster.lane.Bcast(params)
            self.traffic.broadcast(params.nbytes, self.cluster.n_nodes, self.cluster.node == 0)
        super().broadcast(params)

    def grads_ready(self, segment: slice) -> None:
        if self.worker < 0:
            return
        self._begin()
        while self.n_left < len(self.buckets) and self.buckets[self.n_left].start >= segment.start:
            self.departed.add(self.n_left)
            if self.lane:
                self.flights.leave(self.n_left)
            self.n_left += 1
        if self.lane:
            self._advance(self.lane)

    def _begin(self) -> None:
        """Begin a step's exchange on a leader, if it has not begun."""
        if self.lane and not self.begun:
            self.lane.begin()
        self.begun = True

    def _has_left(self, bucket: int) -> bool:
        """Return True if the gradients of a bucket are complete in every worker of this node."""
        return bool(self.departed.wait(bucket, self._all_left, 0))

    @property
    def _all_left(self) -> int:
        """Value of a counter in ``departed`` once all workers' gradients of this step are complete."""
        return (self.n_steps + 1) * self.n_slots & WRAP

    def _advance(self, lane: Lane) -> bool:
        done = lane.advance()
        if self.worker >= 0:
            self.flights.see(lane.parts[lane.whole][0] if not done else len(self.buckets))
        return done

    def gather_mean(self, grads: np.ndarray, n_samples: int) -> Segments:
        if not self._far:
            yield from super().gather_mean(grads, n_samples)
            return
        computed_at = perf_counter()
        self._put(grads, 0)
        if self.codec != "none":
            self._encoded()
        else:
            self._exchange()
        # the leaders have the complete sum
        self.meeting.meet(SUMMED[1], self.leading, waits=self.reducer is not None)
        for segment, mean in self.means:
            if segment.start < segment.stop:
                yield segment, mean.over(n_samples)
        self._commit()
        if self.lane and self.worker >= 0 and self.codec == "none":
            self.flights.end(computed_at, self.trace)

    allreduce_mean = gather_mean

    def _encoded(self) -> None:
        """Sum over this node by its reducers, then over the nodes by one leader of each."""
        if self.reducer is not None:
            self.meeting.wait(READY[0])
            for _, mean, total in self.local:
                if mean is None:
                    total[:] = 0
                elif len(total):
                    mean.over(1).into(total)
                    self.traffic.sum(total.nbytes, mean.n_rows)
        self.meeting.meet(SUMMED[0], self.reducing, waits=self.leading.mine)
        if self.compressed is not None:
            self.compressed(self.total)

    def _exchange(self) -> None:
        """Send the last gradients, and on a leader wait until its parts of the sum are complete."""
        self._begin()
        self.grads_ready(slice(0, self._size))
        if self.lane:
            self._finish(self.lane)
        self.begun, self.n_left = False, 0
        self.n_steps += 1

    def _finish(self, lane: Lane) -> None:
        """Wait until a lane's parts of the sum are complete, and its sends too."""
        patience, progress = self.cluster.patience, -1
        while not self._advance(lane):
            if (bucket := lane.lacks) is not None:
                self.meeting.until(partial(self._comes, lane, bucket))
                progress = -1
            elif progress != lane.summed + lane.whole:
                progress = lane.summed + lane.whole
                patience.begin()
            else:
                patience.look(lane.peers)
        patience.begin()
        while not lane.end():
            patience.look(lane.peers)
        patience.begin()

    def _comes(self, lane: Lane, bucket: int, timeout_s: float) -> bool:
        """Wait for the gradients of a bucket, and progress MPI meanwhile; return False after ``timeout_s``."""
        deadline = perf_counter() + timeout_s
        while not self.departed.wait(bucket, self._all_left, PROGRESS_S if lane.is_busy else timeout_s):
            lane.advance()
            if perf_counter() >= deadline:
                return False
        return True
