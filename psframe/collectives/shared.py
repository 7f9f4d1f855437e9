"""``shared`` (:class:`Shared`): parameters and gradients of a node's ranks in shared memory, without copies.

Each reducer sums one segment over all workers' slots in the canonical order, and updates it in the same pass; see
:mod:`psframe.collectives.node_vectors`.
"""

from typing import Literal

import numpy as np

from psframe.cluster.gates import SUMMED
from psframe.cluster.roles import Team
from psframe.collectives.base import BaseCollective, Segments
from psframe.collectives.domains import Domains, need_plain
from psframe.collectives.node_vectors import NodeVectors, Reducers
from psframe.collectives.traits import Traits
from psframe.config.registry import Count, PositiveInt
from psframe.errors import UserError
from psframe.memory.allocator import Allocator
from psframe.memory.arena import ONE_COPY, Arena, Keeping, Layout
from psframe.record.trace import UNTRACED, Trace

CHUNK_BYTES = 1 << 20  # of a slot, for gradients that are computed elsewhere


class Shared(BaseCollective):
    """Collective over one node's shared memory; all ranks must be on that node.

    Parameters
    ----------
    reducers : str
        Ranks that sum and update: ``server``, rank 0 only (the parameter server of Woo et al. 2020); ``all`` ranks, a
        segment each; ``cores``, as many ranks as cores. At most one per page of the vector.
    chunk_bytes : int or 'auto'
        0: gradients are computed in the slots. Otherwise they are copied chunk by chunk to slots of twice this size,
        for gradients that exceed the memory of the exchange. ``auto``: 1 MiB if ``placement.exchange`` is given and
        differs from ``placement.gradients``, else 0.
    domains : int or 'auto'
        Domains of memory whose workers sum one after the other, so that fewer bytes cross between them. ``auto``: the
        NUMA nodes near the ranks, where that saves more than it moves; 1: all is summed at once; a number: so many
        groups of neighbouring ranks, as of those with a cache in common.
    fallback : {'none', 'buffer'}
        Collective to use without shared memory; ``psframe.train.assembly.assemble`` reads it.
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
        chunk_bytes: Count | Literal["auto"] = "auto",
        domains: PositiveInt | Literal["auto"] = "auto",
        fallback: Literal["none", "buffer"] = "none",
    ):
        super().__init__(team, size, allocator, reproducible)
        if team.cluster and team.cluster.n_nodes > 1:
            raise UserError(
                f"collective: shared must have all ranks on one node, got {team.cluster.n_nodes} nodes (ranks that can "
                "map the same memory are one); give collective=hierarchical"
            )
        if chunk_bytes == "auto":
            placement = allocator.home("exchange").placement
            chunk_bytes = CHUNK_BYTES if placement not in ("default", allocator.home("gradients").placement) else 0
        need_plain(domains, self._merges is None, bool(chunk_bytes), team.largest is not None)
        plain: Domains = domains if self._merges is None else 1
        self._node = NodeVectors(team, size, allocator, reducers, chunk_bytes, self.traffic, plain)

    def arena(self, layout: Layout, n_state: int, keeping: Keeping = ONE_COPY, trace: Trace = UNTRACED) -> Arena:
        arena = self._node.arena(layout, n_state, keeping)
        self._means = [(segment, self.mean_of(rows)) for segment, rows in self._node.parts]
        return arena

    def broadcast(self, params: np.ndarray) -> None:
        self._node.publish()

    def gather_mean(self, grads: np.ndarray, divisor: int) -> Segments:
        node, last = self._node, self._node.division.n_chunks - 1
        node.put(grads)
        node.sum()
        for chunk in range(last + 1):
            if chunk < last:
                node.put(grads, chunk + 1)  # while other ranks may still sum this one
            if node.reducer is not None:
                node.wait(chunk)
                segment, mean = self._means[chunk]
                if segment.start < segment.stop:
                    yield segment, mean.over(divisor)
            if chunk < last:
                node.meeting.meet(SUMMED[chunk % 2], node.reducing, waits=False)
        node.commit()

    allreduce_mean = gather_mean
