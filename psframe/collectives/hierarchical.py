"""``hierarchical``: shared memory inside each node, MPI among one leader of each.

Every node keeps parameters and optimizer state once. What goes between nodes is the sum of the gradients, and every
node updates its own: to the same bits, since the update is elementwise. In the canonical order a running sum (of
a tree, those that are under way) passes from node to node, chunk by chunk, so that all nodes work at once; the last one
has the whole sum and broadcasts it. Where MPI may choose the order, every node's reducers sum their segments first and
the leaders allreduce.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from mpi4py import MPI

from psframe import compiled
from psframe.arena import Arena, Layout
from psframe.collectives.base import Segments
from psframe.collectives.carriers import Buffers
from psframe.collectives.compression import CompressedSum, codec_maker, forget, warm
from psframe.collectives.order import merges, stacked, widths
from psframe.collectives.shared import Shared
from psframe.memory.allocator import Allocator
from psframe.memory.gates import READY, SUMMED
from psframe.team import Team

CHUNK = 1 << 17  # numbers of the running sum that travel together: 512 kB


@dataclass(frozen=True)
class Passing:
    """A chunk on its way through the nodes: the sums that come from the node before, what is added, what goes on."""

    arrives: list[np.ndarray]
    sums: list[tuple[np.ndarray, Any]]
    leaves: list[np.ndarray]


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
            self.means = [(segment, self.mean_of([self.total[segment]])) for segment, _ in self.means]
            if self.leads and not self.combines:
                self._prepare_chain()
        return arena

    def mean_of(self, rows: Sequence[np.ndarray]) -> Any:
        if self.several:  # this node's rows alone, where MPI adds up the nodes, or the sum over all of them
            return compiled.elementwise.Mean(rows) if rows else None
        return super().mean_of(rows)

    def _prepare_chain(self) -> None:
        """Make the sums of this node's slots onto what comes from the node before."""
        node, sizes, dedicated = self.cluster.node, self.cluster.sizes, self.team.server == "dedicated"
        first = 1 if dedicated and sizes[0] == 1 else 0  # a server may be alone on its node
        self.before = node - 1 if node > first else MPI.PROC_NULL
        self.behind = node + 1 if first <= node < len(sizes) - 1 else MPI.PROC_NULL
        n_running, parts = self._order(max(0, sum(sizes[:node]) - dedicated))
        n_totals = max(1, n_running, len(parts))
        totals = [self.total, *self.allocator.zeros((n_totals - 1, self.size), np.float32, "exchange")]
        self.chain: list[Passing] = []
        for begin in range(0, self.size, CHUNK) if node >= first else ():
            chunks = [total[begin : begin + CHUNK] for total in totals]
            rows = [*chunks[:n_running], *(row[begin : begin + CHUNK] for row in self.rows)]
            # a sum to which nothing is added goes on as it came
            sums = [
                (chunks[number], compiled.elementwise.Mean(rows[part], order))
                for number, (part, order) in enumerate(parts)
                if part != slice(number, number + 1) or number >= n_running
            ]
            self.chain.append(Passing(chunks[:n_running], sums, chunks[: len(parts)]))

    def _order(self, first: int) -> tuple[int, list[tuple[slice, Sequence[int] | None]]]:
        """Return how many sums come from the node before, and of which rows, in which order, each sum is that leaves.

        The rows are those sums and the slots of this node's workers, of which ``first`` is the first one's number.
        """
        n_own = len(self.rows)
        if self.merges is None:
            n_running = min(1, first)
            return n_running, [(slice(0, n_running + n_own), None)]
        spans = widths(self.team.n_workers)
        running = [width for _, width in stacked(spans[:first])]
        rows = [*running, *spans[first : first + n_own]]
        return len(running), [(part, merges(rows[part])) for part, _ in stacked(rows)]

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
        leaving: list[MPI.Request] = []
        arriving = [[self.leaders.Irecv(total, self.before) for total in passing.arrives] for passing in self.chain]
        for requests, passing in zip(arriving, self.chain, strict=True):
            MPI.Request.Waitall(requests)
            self.traffic.receive(sum(total.nbytes for total in passing.arrives))
            for total, mean in passing.sums:
                mean.over(1).into(total)
                self.traffic.sum(total.nbytes, mean.n_rows)
            for total in passing.leaves if self.behind != MPI.PROC_NULL else ():
                leaving.append(self.leaders.Isend(total, self.behind))
                self.traffic.send(total.nbytes)
        MPI.Request.Waitall(leaving)
        self._bcast(self.total, self.leaders.size - 1)

    def _bcast(self, vector: np.ndarray, root: int) -> None:
        self.leaders.Bcast(vector, root)
        self.traffic.broadcast(vector.nbytes, self.leaders.size, self.leaders.rank == root)
