"""Sums over several nodes, for ``hierarchical``: bucket by bucket during backward (:class:`Streamed`), or encoded
(:class:`Encoded`). Both leave the sum over all workers in a vector of each node's shared memory.
"""

from collections.abc import Collection, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from psframe import compiled
from psframe.cluster.cluster import Cluster
from psframe.cluster.counters import WRAP
from psframe.cluster.gates import READY, SUMMED, Parties
from psframe.collectives.buckets import MAX_BUCKETS, SendTimes, cut_at_layers, least_of
from psframe.collectives.compression import CompressedSum, GatheredSum, forget
from psframe.collectives.lanes import Lane, shares
from psframe.collectives.node_vectors import NodeVectors
from psframe.record.trace import Trace

PROGRESS_S = 2e-4  # between two MPI calls of a rank that waits for its node while messages are in flight


class Streamed:
    """Exchange by a few leaders of each node, during backward; an ``Overlap`` (:mod:`psframe.collectives.base`).

    Parameters
    ----------
    leading : Parties
        The leaders, as a part of the node's rendezvous.
    bucket_bytes : int
        Least bytes of a bucket; 0: one bucket, after backward.
    memory : ndarray of uint8, shape (MAX_BUCKETS * Counters.EACH,)
        Shared by the node's ranks.
    """

    def __init__(
        self, cluster: Cluster, node: NodeVectors, leading: Parties, bucket_bytes: int, memory: np.ndarray, trace: Trace
    ):
        self._cluster, self._node, self._leading = cluster, node, leading
        self._bucket_bytes, self._size, self._trace = bucket_bytes, node.division.size, trace
        self._lane: Lane | None = None
        #: by bucket: number of complete gradients of this node's workers, over all steps
        self._departed = cluster.rendezvous.Counters(memory, MAX_BUCKETS)
        self._buckets, self._times = [slice(0, self._size)], SendTimes(1)
        self._begun, self._n_left, self._n_steps = False, 0, 0

    def lead(self, lane: Lane) -> None:
        """Take the lane of this rank, a leader."""
        self._lane = lane
        self._plan_buckets(self._buckets)

    def hook_layers(self, begins: Sequence[int]) -> Collection[int]:
        if not self._bucket_bytes:
            return ()
        self._plan_buckets(cut_at_layers(begins, self._size, least_of(self._bucket_bytes, self._size)))
        return range(len(begins)) if len(self._buckets) > 1 else ()

    def _plan_buckets(self, buckets: list[slice]) -> None:
        self._buckets, self._times = buckets, SendTimes(len(buckets))
        if self._lane:
            self._lane.depart_in(shares(buckets, len(self._leading.ranks), self._cluster.node_rank))

    @property
    def overlap_s(self) -> tuple[float, float]:
        return self._times.flight_s, self._times.hidden_s

    def clear(self) -> None:
        """Reset ``overlap_s``."""
        self._times.clear()

    def forget(self) -> None:
        """Discard nothing: no state is left by a step."""

    def grads_ready(self, segment: slice) -> None:
        if self._node.worker < 0:
            return
        self._begin()
        while self._n_left < len(self._buckets) and self._buckets[self._n_left].start >= segment.start:
            self._departed.add(self._n_left)
            if self._lane:
                self._times.sent(self._n_left)
            self._n_left += 1
        if self._lane:
            self._advance(self._lane)

    def _begin(self) -> None:
        """Begin a step's exchange on a leader, if it has not begun."""
        if self._lane and not self._begun:
            self._lane.begin()
        self._begun = True

    def has_left(self, bucket: int) -> bool:
        """Return True if the gradients of a bucket are complete in every worker of this node."""
        return bool(self._departed.wait(bucket, self._all_left, 0))

    @property
    def _all_left(self) -> int:
        """Value of a counter in ``departed`` once all workers' gradients of this step are complete."""
        return (self._n_steps + 1) * self._node.n_workers & WRAP

    def _advance(self, lane: Lane) -> bool:
        done = lane.advance()
        if self._node.worker >= 0:
            self._times.completed(lane.parts[lane.n_complete][0] if not done else len(self._buckets))
        return done

    def sum(self) -> None:
        """Send the last gradients, and on a leader wait until its parts of the sum are complete."""
        self._begin()
        self.grads_ready(slice(0, self._size))
        if self._lane:
            self._finish(self._lane)
        self._begun, self._n_left = False, 0
        self._n_steps += 1

    def end(self, computed_at: float) -> None:
        """Add the times of a step whose backward ended at ``computed_at``."""
        if self._lane and self._node.worker >= 0:
            self._times.end(computed_at, self._trace)

    def _finish(self, lane: Lane) -> None:
        """Wait until a lane's parts of the sum are complete, and its sends too."""
        patience, progress = self._cluster.patience, -1
        while not self._advance(lane):
            if (bucket := lane.lacks) is not None:
                self._node.meeting.until(partial(self._comes, lane, bucket))
                progress = -1
            elif progress != lane.summed + lane.n_complete:
                progress = lane.summed + lane.n_complete
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
        while not self._departed.wait(bucket, self._all_left, PROGRESS_S if lane.is_busy else timeout_s):
            lane.advance()
            if perf_counter() >= deadline:
                return False
        return True


class Encoded:
    """Exchange through a codec, after backward: the node's reducers sum, and one leader sends the sum to the others.

    Parameters
    ----------
    total : ndarray of float32, shape (S,)
        Output, in the node's shared memory.
    encoded : CompressedSum, GatheredSum or None
        The sum over the leaders; None on other ranks.
    """

    def __init__(
        self, node: NodeVectors, leading: Parties, total: np.ndarray, encoded: CompressedSum | GatheredSum | None
    ):
        self._node, self._leading, self._total, self._encoded = node, leading, total, encoded
        self._sums: list[tuple[Any, np.ndarray]] = [
            (compiled.elementwise.Mean(rows) if rows else None, total[segment]) for segment, rows in node.parts
        ]

    def forget(self) -> None:
        """Discard non-finite residuals."""
        for codec in self._encoded.every_codec if self._encoded is not None else ():
            forget(codec)

    def sum(self) -> None:
        """Sum over this node by its reducers, then over the nodes by one leader of each."""
        if self._node.reducer is not None:
            self._node.meeting.wait(READY[0])
            for mean, total in self._sums:
                if mean is None:
                    total[:] = 0
                elif len(total):
                    mean.over(1).into(total)
                    self._node.traffic.sum(total.nbytes, mean.n_rows)
        self._node.meeting.meet(SUMMED[0], self._node.reducing, waits=self._leading.mine)
        if self._encoded is not None:
            self._encoded(self._total)

    def end(self, computed_at: float) -> None:
        """Add nothing: no exchange is in flight during backward."""
