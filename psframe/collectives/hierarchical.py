"""``hierarchical``: shared memory inside each node, MPI among one leader of each.

Every node keeps parameters and optimizer state once. What goes between nodes is the sum of the gradients, and every
node updates its own: to the same bits, since the update is elementwise. In the canonical order a running sum passes
from node to node, chunk by chunk, so that all nodes work at once; the last one has the whole sum and broadcasts it.
Where MPI may choose the order, every node's reducers sum their segments first and the leaders allreduce.
"""

from typing import Any, Literal

import numpy as np
from mpi4py import MPI

from psframe import compiled
from psframe.arena import Arena, Layout
from psframe.cluster import Team
from psframe.collectives.base import Segments
from psframe.collectives.carriers import Buffers
from psframe.collectives.compression import CompressedSum, codec_maker, forget, warm
from psframe.collectives.shared import Shared
from psframe.memory.allocator import Allocator
from psframe.memory.gates import READY, SUMMED

CHUNK = 1 << 17  # numbers of the running sum that travel together: 512 kB


class Hierarchical(Shared):
    """:class:`Shared` on one node; on several, the leaders exchange sums.

    Parameters
    ----------
    reducers, fallback
        As in :class:`Shared`; ``server`` is each node's first rank.
    compression : str or mapping
        Of what goes between nodes; see :mod:`psframe.collectives.compression`.
    """

    def __init__(
        self,
        team: Team,
        size: int,
        allocator: Allocator,
        reproducible: str,
        *,
        reducers: Literal["server", "cores", "all"] = "cores",
        compression: str | dict[str, Any] = "none",
        fallback: Literal["none", "buffer"] = "none",
    ):
        super().__init__(team, size, allocator, reproducible, reducers=reducers, chunk_bytes=0, fallback=fallback)
        self.several, self.leaders = self.cluster.n_nodes > 1, self.cluster.leaders
        self.leads = self.leaders != MPI.COMM_NULL
        self.leader = self.meeting.among((0,))
        #: by MPI, when each node has its own sum: otherwise the sum passes through the nodes
        self.combines = compression != "none" or not self.canonical
        self.compressed, self.compression, self.exact = None, compression, compression == "none"
        if self.several and self.leads and compression != "none":
            carrier, make = Buffers(self.leaders), codec_maker(compression, allocator)
            self.compressed = CompressedSum(carrier, size, make, allocator, self.traffic)

    def judge(self, n_nodes: int) -> None:
        pass

    def arena(self, layout: Layout, n_state: int) -> Arena:
        arena = super().arena(layout, n_state)
        if self.several:
            self.total = self._vectors(1, "exchange")[0]
            #: this rank's segment of the sum over its node, and of the mean over all
            self.local = [(segment, mean, self.total[segment]) for segment, mean in self.means]
            self.means = [(segment, self.mean([self.total[segment]])) for segment, _ in self.means]
            if self.leads and not self.combines:
                self._prepare_chain()
        return arena

    def _prepare_chain(self) -> None:
        """Make the sums of this node's slots onto what comes from the node before."""
        node, sizes = self.cluster.node, self.cluster.sizes
        first = 1 if self.team.server == "dedicated" and sizes[0] == 1 else 0  # a server may be alone on its node
        self.before = node - 1 if node > first else None
        self.behind = node + 1 if first <= node < len(sizes) - 1 else None
        self.chain: list[tuple[np.ndarray, Any]] = []
        for begin in range(0, self.size, CHUNK) if node >= first else ():
            chunk = self.total[begin : begin + CHUNK]
            running = [chunk] if self.before is not None else []
            of_node = [row[begin : begin + CHUNK] for row in self.rows]
            self.chain.append((chunk, compiled.elementwise.Mean([*running, *of_node])))

    def warm(self) -> None:
        if self.compressed is not None:
            warm(self.compression)

    def forget(self) -> None:
        for codec in self.compressed.every_codec if self.compressed is not None else ():
            forget(codec)

    def broadcast(self, params: np.ndarray) -> None:
        if self.several and not self.current and self.leads:
            self._bcast(params, 0)
        super().broadcast(params)

    def gather_mean(self, grads: np.ndarray, n_samples: int) -> Segments:
        if not self.several:
            yield from super().gather_mean(grads, n_samples)
            return
        self._put(grads, 0)
        if self.combines:
            self._combine()
        elif self.leads:
            self.meeting.wait(READY[0])
            self._pass_on()
        # the leader has the whole sum
        self.meeting.meet(SUMMED[1], self.leader, waits=self.reducer is not None)
        for segment, mean in self.means:
            if segment.start < segment.stop:
                yield segment, mean.over(n_samples)
        self._commit()

    allreduce_mean = gather_mean

    def _combine(self) -> None:
        """Sum over this node by its reducers, and let the leaders add up the nodes."""
        if self.reducer is not None:
            self.meeting.wait(READY[0])
            for _, mean, total in self.local:
                if mean is None:
                    total[:] = 0
                elif len(total):
                    mean.over(1).into(total)
                    self.traffic.sum(total.nbytes, mean.n_rows)
        self.meeting.meet(SUMMED[0], self.reducing, waits=self.leads)
        if self.compressed is not None:
            self.compressed(self.total)
        elif self.leads:
            self.leaders.Allreduce(MPI.IN_PLACE, self.total)
            self.traffic.allreduce(self.total.nbytes, self.leaders.size)

    def _pass_on(self) -> None:
        """Add this node's gradients to the running sum, chunk by chunk, and have the whole from the last node."""
        arriving, leaving = [], []
        if self.before is not None:
            arriving = [self.leaders.Irecv(chunk, self.before) for chunk, _ in self.chain]
        for number, (chunk, mean) in enumerate(self.chain):
            if arriving:
                arriving[number].Wait()
                self.traffic.receive(chunk.nbytes)
            mean.over(1).into(chunk)
            self.traffic.sum(chunk.nbytes, mean.n_rows)
            if self.behind is not None:
                leaving.append(self.leaders.Isend(chunk, self.behind))
                self.traffic.send(chunk.nbytes)
        MPI.Request.Waitall(leaving)
        self._bcast(self.total, self.leaders.size - 1)

    def _bcast(self, vector: np.ndarray, root: int) -> None:
        self.leaders.Bcast(vector, root)
        self.traffic.broadcast(vector.nbytes, self.leaders.size, self.leaders.rank == root)
