"""``shared`` (:class:`Shared`): parameters and gradients of a node's ranks in shared memory, without copies.

The parameters exist once per node; a broadcast is their version number. Every worker writes its gradients to its own
slot. Each reducer sums one segment over all slots in the canonical order, and updates it in the same pass. Updates go
to a second copy, which becomes current by a single store once all reducers are done: no rank sees a partial step, and a
step in which a rank dies has no effect.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from psframe.cluster.gates import COMMITTED, READY, SUMMED
from psframe.cluster.roles import Team
from psframe.collectives.base import Base, Segments
from psframe.collectives.segments import ITEM_BYTES, chosen, divide, vectors
from psframe.collectives.traits import Traits
from psframe.config.registry import Count
from psframe.errors import UserError
from psframe.memory.allocator import Allocator
from psframe.memory.arena import ONE_COPY, Arena, Keeping, Layout, Vectors
from psframe.record.trace import UNTRACED, Trace

CHUNK_BYTES = 1 << 20  # of a slot, for gradients that are computed elsewhere


class Shared(Base):
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
    fallback : {'none', 'buffer'}
        Collective to use without shared memory; ``psframe.train.build.assemble`` reads it.
    """

    traits = Traits(supports_tree_sum=True)

    def __init__(
        self,
        team: Team,
        size: int,
        allocator: Allocator,
        reproducible: str,
        *,
        reducers: Literal["server", "cores", "all"] = "cores",
        chunk_bytes: Count | Literal["auto"] = "auto",
        fallback: Literal["none", "buffer"] = "none",
    ):
        super().__init__(team, size, allocator, reproducible)
        if team.cluster is None:
            raise AssertionError("a team over shared memory needs its cluster")
        self.cluster = team.cluster
        self.check(self.cluster.n_nodes)
        self.meeting, me = self.cluster.rendezvous, self.cluster.node_rank
        n_ranks = len(self.meeting.members)
        if chunk_bytes == "auto":
            placement = allocator.home("exchange").placement
            chunk_bytes = CHUNK_BYTES if placement not in ("default", allocator.home("gradients").placement) else 0
        self.chunked = bool(chunk_bytes)
        homes = ("parameters", "optimizer", "exchange" if self.chunked else "gradients")
        page_bytes = max(allocator.home(role).page_bytes for role in homes)
        n_wanted = {"server": 1, "all": n_ranks, "cores": min(n_ranks, self.meeting.n_cores)}[reducers]
        self.division = divide(size, page_bytes, chunk_bytes, n_wanted)
        self.reducers = chosen(n_ranks, self.division.n_reducers)
        self.reducing = self.meeting.among(self.reducers)
        self.reducer = self.reducers.index(me) if me in self.reducers else None
        first = 1 if team.server == "dedicated" and self.meeting.members[0] == 0 else 0
        self.worker, self.n_slots = me - first, n_ranks - first  # on this node; -1 on a dedicated server
        self.n_taken = team.largest or self.n_slots  # slots that are allocated
        self.current = False  # True if every rank of the node knows the version of the parameters

    def check(self, n_nodes: int) -> None:
        """Raise UserError if this collective does not support ``n_nodes`` nodes."""
        if n_nodes > 1:
            raise UserError(
                f"collective: shared must have all ranks on one node, got {n_nodes} nodes (ranks that can map the same "
                "memory are one); give collective=hierarchical"
            )

    def arena(self, layout: Layout, n_state: int, keeping: Keeping = ONE_COPY, trace: Trace = UNTRACED) -> Arena:
        params = [self._vectors(1, "parameters") for _ in range(2)]
        state = [self._vectors(n_state, "optimizer") for _ in range(2)]
        slots = self._slots()
        if self.chunked or self.worker < 0:
            # a dedicated server has no slot; its network needs gradients only to compile
            grads = self._allocator.zeros(self._size, np.float32, "gradients")
        else:
            grads = slots[0][self.worker]
        self.rows = list(slots[0])  # this node's gradients by worker, unless chunked
        self.slots = [half[self.worker] for half in slots] if self.chunked and self.worker >= 0 else []
        #: this rank's segment of every chunk, with its mean over the slots
        self.means: list[tuple[slice, Any]] = []
        for number, segment in enumerate(self.division.segments(self.reducer) if self.reducer is not None else ()):
            begin = number * self.division.chunk
            half = slots[number % len(slots)]
            self.means.append(
                (segment, self.mean_of([row[segment.start - begin : segment.stop - begin] for row in half]))
            )
        # parameters and state without padding
        of_node = Vectors([v[0] for v in params], grads, state)
        self.vectors = Arena(layout, n_state, self._allocator, vectors=of_node, guarded=keeping.guarded)
        return self.vectors

    def mean_of(self, rows: Sequence[np.ndarray]) -> Any:
        """Return the mean over this node's slots; None if it has none."""
        return super().mean_of(rows) if rows else None

    def _vectors(self, n: int, role: str) -> np.ndarray:
        """Return ``n`` vectors in shared memory, float32 (n, S), each aligned to a page."""
        return vectors(self._allocator, self.division, self.reducer, n, role)

    def _slots(self) -> list[np.ndarray]:
        """Return the workers' slots, (workers of the node, S), or if chunked their two halves, (workers, chunk)."""
        if not self.chunked:
            return [self._vectors(self.n_taken, "gradients")[: self.n_slots]]
        n_rows, row_bytes = 2 * self.n_taken, self.division.chunk * ITEM_BYTES
        part = self.division.within(self.reducer) if self.reducer is not None else slice(0, 0)
        own_slices = [
            slice(row * row_bytes + part.start * ITEM_BYTES, row * row_bytes + part.stop * ITEM_BYTES)
            for row in range(n_rows)
        ]
        memory = self._allocator.shared(n_rows * row_bytes, "exchange", own_slices)
        return list(memory.view(np.float32).reshape(2, self.n_taken, self.division.chunk)[:, : self.n_slots])

    def broadcast(self, params: np.ndarray) -> None:
        if not self.current:
            self.meeting.together()
        self.current = False  # only a step sets it; parameters written otherwise need a barrier

    def gather_mean(self, grads: np.ndarray, n_samples: int) -> Segments:
        last = self.division.n_chunks - 1
        self._put(grads, 0)
        for chunk in range(last + 1):
            if chunk < last:
                self._put(grads, chunk + 1)  # while other ranks may still sum this one
            if self.reducer is not None:
                self.meeting.wait(READY[chunk % 2])
                segment, mean = self.means[chunk]
                if segment.start < segment.stop:
                    yield segment, mean.over(n_samples)
            if chunk < last:
                self.meeting.meet(SUMMED[chunk % 2], self.reducing, waits=False)
        self._commit()

    allreduce_mean = gather_mean

    def _put(self, grads: np.ndarray, chunk: int) -> None:
        """Announce the gradients of a chunk, after copying them to this worker's slot if they are not there."""
        half = chunk % 2
        if chunk > 1:
            self.meeting.wait(SUMMED[half])  # until the previous chunk of this half is summed
        if self.worker >= 0 and not self.chunked and grads is not self.vectors.grads:
            self.vectors.grads[:] = grads
            self.traffic.sum(grads.nbytes, 1)
        if self.slots:
            begin = chunk * self.division.chunk
            part = grads[begin : begin + self.division.chunk]
            self.slots[half][: len(part)] = part
            self.traffic.sum(part.nbytes, 1)
        self.meeting.meet(READY[half], self.meeting.everyone, waits=False)

    def _commit(self) -> None:
        gates, arena = self.meeting.gates, self.vectors
        if arena.nonfinite:
            gates.object(COMMITTED)
        self.meeting.meet(COMMITTED, self.reducing)
        arena.nonfinite = arena.guarded and gates.is_objected(COMMITTED)
        arena.close()
        self.current = True
