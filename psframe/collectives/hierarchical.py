"""``hierarchical`` (:class:`Hierarchical`): shared memory inside each node, MPI among a few leaders of each node.

Every node has one copy of parameters and optimizer state (:mod:`psframe.collectives.node_vectors`). Nodes exchange sums
of gradients (:mod:`psframe.collectives.between_nodes`). Every node updates its own copy, to the same bits, since the
update is elementwise.
"""

from dataclasses import replace
from typing import Any, Literal

import numpy as np

from psframe import compiled
from psframe.cluster.gates import SUMMED
from psframe.cluster.roles import Team
from psframe.collectives.base import NO_OVERLAP, BaseCollective, Overlap, Segments
from psframe.collectives.between_nodes import Encoded, Streamed
from psframe.collectives.buckets import MAX_BUCKETS
from psframe.collectives.carriers import Buffers
from psframe.collectives.compression import sum_between_nodes, warm
from psframe.collectives.domains import Domains
from psframe.collectives.lanes import Chain, Combined, Lane
from psframe.collectives.node_vectors import NodeVectors, Reducers
from psframe.collectives.traits import Traits
from psframe.config.registry import Count
from psframe.memory.allocator import Allocator, shared_block
from psframe.memory.arena import ONE_COPY, Arena, Keeping, Layout
from psframe.record.clock import CLOCK
from psframe.record.trace import UNTRACED, Trace

BUCKET_BYTES = 1 << 17  # a millisecond at 1 Gb/s, a few times a message's latency on faster links
RANKS_PER_LEADER = 8  # of a node, under ``leaders: auto``


class Hierarchical(BaseCollective):
    """On one node the same as ``shared``; on several, leaders exchange sums.

    Parameters
    ----------
    reducers, fallback
        As in :class:`psframe.collectives.shared.Shared`; ``server`` is each node's first rank.
    leaders : int or 'auto'
        Ranks per node that sum for it and exchange with the other nodes, each with a share of every bucket; at most the
        ranks of the smallest node. ``auto``: one for every eight ranks of the smallest node.
    bucket_bytes : int
        Least bytes of a bucket of gradients sent during backward; 0: all at once, after it.
    compression : str or mapping
        Codec between nodes; see :mod:`psframe.collectives.compression`. A single leader then sends all gradients,
        after backward.
    """

    traits = Traits(supports_tree_sum=True, keeps_tensors=True)

    def __init__(
        self,
        team: Team,
        size: int,
        allocator: Allocator,
        reproducible: str,
        *,
        reducers: Reducers = "cores",
        leaders: Count | Literal["auto"] = "auto",
        bucket_bytes: Count = BUCKET_BYTES,
        compression: str | dict[str, Any] = "none",
        fallback: Literal["none", "buffer"] = "none",
    ):
        super().__init__(team, size, allocator, reproducible)
        if team.cluster is None:
            raise AssertionError("a team over shared memory needs its cluster")
        self._cluster, self._codec, self._bucket_bytes = team.cluster, compression, bucket_bytes
        self.traits = replace(self.traits, exact=compression == "none")
        domains: Domains = "auto" if self._merges is None else 1
        self._node = NodeVectors(team, size, allocator, reducers, 0, self.traffic, domains)
        smallest = min(team.cluster.sizes)
        n_wanted = -(-smallest // RANKS_PER_LEADER) if leaders == "auto" else max(1, leaders)
        n_leaders = min(n_wanted, smallest) if compression == "none" else 1
        self._leading = self._node.meeting.among(tuple(range(n_leaders)))
        self._encoded = None
        if self._far and self._leading.mine and compression != "none":
            carrier = Buffers(team.cluster.lane)
            self._encoded = sum_between_nodes(carrier, size, compression, allocator, self.traffic)
        self._between: Streamed | Encoded | None = None

    def arena(self, layout: Layout, n_state: int, keeping: Keeping = ONE_COPY, trace: Trace = UNTRACED) -> Arena:
        arena = self._node.arena(layout, n_state, keeping)
        if self._far:
            total = self._node.zeros(1, "exchange")[0]
            self._means = [(segment, compiled.elementwise.Mean([total[segment]])) for segment, _ in self._node.parts]
            if self._codec == "none":
                self._between = self._streamed(total, trace)
            else:
                self._between = Encoded(self._node, self._leading, total, self._encoded)
        else:
            self._means = [(segment, self.mean_of(rows)) for segment, rows in self._node.parts]
        return arena

    def _streamed(self, total: np.ndarray, trace: Trace) -> Streamed:
        n_bytes = MAX_BUCKETS * compiled.sync.Counters.EACH
        memory = shared_block(self._allocator, n_bytes, "exchange", self._cluster.link.leads)
        streamed = Streamed(self._cluster, self._node, self._leading, self._bucket_bytes, memory, trace)
        if self._leading.mine:
            streamed.lead(self._lane(streamed, total))
        return streamed

    def _lane(self, streamed: Streamed, total: np.ndarray) -> Lane:
        parts = (self._cluster.lane, streamed.has_left, total, self._node.rows, self.traffic)
        if not self._canonical:
            return Combined(*parts)
        return Chain(
            *parts,
            node=self._cluster.node,
            sizes=self._cluster.sizes,
            dedicated=self._team.server == "dedicated",
            tree=self._merges is not None,
            zeros=lambda shape: self._allocator.zeros(shape, np.float32, "exchange"),
        )

    @property
    def overlap(self) -> Overlap:
        return self._between if isinstance(self._between, Streamed) else NO_OVERLAP

    def warm(self) -> None:
        if self._encoded is not None:
            warm(self._codec)

    def forget(self) -> None:
        if self._between:
            self._between.forget()

    def broadcast(self, params: np.ndarray) -> None:
        if self._far and not self._node.is_current and self._cluster.link.leads:
            self._wait(self._cluster.lane.Ibcast(params))
            self.traffic.broadcast(params.nbytes, self._cluster.n_nodes, self._cluster.node == 0)
        self._node.publish()

    def gather_mean(self, grads: np.ndarray, divisor: int) -> Segments:
        computed_at, node = CLOCK.now(), self._node
        node.put(grads)
        node.sum()
        if self._between:
            self._between.sum()
            # the leaders have the complete sum
            node.meeting.meet(SUMMED[1], self._leading, waits=node.reducer is not None)
        elif node.reducer is not None:
            node.wait()
        for segment, mean in self._means:
            if segment.start < segment.stop:
                yield segment, mean.over(divisor)
        node.commit()
        if self._between:
            self._between.end(computed_at)

    allreduce_mean = gather_mean
