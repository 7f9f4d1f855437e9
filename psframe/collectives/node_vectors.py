"""Vectors of a node's ranks in shared memory, without copies (:class:`NodeVectors`).

The parameters exist once per node; a broadcast is their version number. Every worker writes its gradients to its own
slot. Updates go to a second copy, which becomes current by a single store once all reducers are done: no rank sees a
partial step, and a step in which a rank dies has no effect.
"""

from typing import Literal

import numpy as np

from psframe.cluster.gates import COMMITTED, READY, SUMMED
from psframe.cluster.roles import Team
from psframe.collectives.domain_sums import AtOnce, ByDomain
from psframe.collectives.domains import Domains, Near, groups, runs_of
from psframe.collectives.segments import ITEM_BYTES, chosen, divide, vectors
from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena, Keeping, Layout, Vectors
from psframe.record.traffic import Traffic

Reducers = Literal["server", "cores", "all"]


class NodeVectors:
    """Parameters, optimizer state and gradients of one node, and the ranks that sum and update them.

    Parameters
    ----------
    size : int
        Length S of the vectors, which are float32.
    reducers : str
        Ranks that sum and update; see :class:`psframe.collectives.shared.Shared`.
    chunk_bytes : int
        0: gradients are computed in the slots. Otherwise slots have two halves of this size each.
    traffic : Traffic
        Counts the copies into slots, and what crosses between domains of memory.
    domains : int or 'auto'
        See :class:`psframe.collectives.shared.Shared`; 1 where workers' slots must stay as they are.

    Attributes
    ----------
    meeting : Rendezvous
        Of the node's ranks.
    reducing : Parties
        The reducers, as a part of it.
    reducer : int or None
        Number of this rank among the reducers.
    worker : int
        Number of this rank among the node's workers; -1 on a dedicated server.
    n_workers : int
        Workers of this node.
    rows : list of ndarray of float32, shape (S,)
        Their gradients, unless chunked.
    parts : list of (slice, list of ndarray)
        This reducer's segment of every chunk, with the rows to sum: the workers' slots of it, or one sum of all.
    """

    def __init__(
        self,
        team: Team,
        size: int,
        allocator: Allocator,
        reducers: Reducers,
        chunk_bytes: int,
        traffic: Traffic,
        domains: Domains = 1,
    ):
        if team.cluster is None:
            raise AssertionError("a team over shared memory needs its cluster")
        self._allocator, self.traffic, self._chunked = allocator, traffic, bool(chunk_bytes)
        self._is_alone = team.cluster.n_nodes == 1
        self.meeting, me = team.cluster.rendezvous, team.cluster.node_rank
        n_ranks = len(self.meeting.members)
        homes = ("parameters", "optimizer", "exchange" if chunk_bytes else "gradients")
        page_bytes = max(allocator.home(role).page_bytes for role in homes)
        n_wanted = {"server": 1, "all": n_ranks, "cores": min(n_ranks, self.meeting.n_cores)}[reducers]
        self.division = divide(size, page_bytes, chunk_bytes, n_wanted)
        members = chosen(n_ranks, self.division.n_reducers)
        self.reducing = self.meeting.among(members)
        self.reducer = members.index(me) if me in members else None
        first = 1 if team.server == "dedicated" and self.meeting.members[0] == 0 else 0
        self.worker, self.n_workers = me - first, n_ranks - first
        self._n_taken = team.largest or self.n_workers  # slots that are allocated
        self._current = False  # True if every rank of the node knows the version of the parameters
        wanted = chosen(n_ranks, n_wanted)  # the reducers, whatever the size of pages
        self._sums = self._made_sums(1 if team.largest or chunk_bytes else domains, self._near(), wanted, members)

    def _near(self) -> Near:
        """Return the NUMA nodes near the ranks; none where gradients go on to other nodes, too."""
        members, n_servers = self.meeting.members, len(self.meeting.members) - self.n_workers
        places = self._allocator.home("exchange" if self._chunked else "gradients").near if self._is_alone else {}
        ranks = tuple(places[rank] for rank in members if rank in places)
        return Near(ranks if len(ranks) == len(members) else (), n_servers)

    def _made_sums(
        self, domains: Domains, near: Near, wanted: tuple[int, ...], reducers: tuple[int, ...]
    ) -> AtOnce | ByDomain:
        """Return how gradients are summed. That hangs on nothing that a spill changes after memory was counted."""
        allocator, size, runs = self._allocator, self.division.size, []
        if domains != "auto":
            runs = runs_of(groups(len(self.meeting.members), domains)[near.n_servers :])
        elif allocator.home("exchange").near and near.pays(ITEM_BYTES * size, wanted):
            runs = near.runs
        if len(runs) > 1:
            return ByDomain(self.meeting, allocator, size, runs, near, self.worker, self.traffic)
        shares = {rank: ITEM_BYTES * self.division.n_of(number) for number, rank in enumerate(reducers)}
        return AtOnce(self.meeting, near.beside(self.meeting.me, shares) if self.worker >= 0 else 0)

    def arena(self, layout: Layout, n_state: int, keeping: Keeping) -> Arena:
        """Return the arena of this rank, whose parameters and state are the node's. All ranks must call."""
        params = [self.zeros(1, "parameters") for _ in range(2)]
        state = [self.zeros(n_state, "optimizer") for _ in range(2)]
        slots = self._slots()
        if self._chunked or self.worker < 0:
            # a dedicated server has no slot; its network needs gradients only to compile
            grads = self._allocator.zeros(self.division.size, np.float32, "gradients")
        else:
            grads = slots[0][self.worker]
        self.rows = list(slots[0])
        self._own_slots = [half[self.worker] for half in slots] if self._chunked and self.worker >= 0 else []
        self.parts: list[tuple[slice, list[np.ndarray]]] = []
        for number, segment in enumerate(self.division.segments(self.reducer) if self.reducer is not None else ()):
            begin, half = self.division.chunks[number].start, slots[number % len(slots)]
            rows = half if self._sums.total is None else [self._sums.total]
            self.parts.append((segment, [row[segment.start - begin : segment.stop - begin] for row in rows]))
        self._sums.attach(self.rows, self.parts[0][0] if self.parts else slice(0, 0))
        # parameters and state without padding
        params_bf16 = [self._bfloat16() for _ in range(2)] if keeping.bfloat16 else ()
        of_node = Vectors([v[0] for v in params], grads, state, params_bf16)
        for row in () if self._chunked else self.rows:
            layout.name(self._allocator, row)  # this rank may place a part of another's
        self._arena = Arena(layout, n_state, self._allocator, vectors=of_node, keeping=keeping)
        return self._arena

    def _bfloat16(self) -> np.ndarray:
        """Return a vector of bfloat16 that the node shares, uint16 (S,), whose pages its reducers place."""
        page_bytes, n_reducers = self._allocator.home("parameters").page_bytes, self.division.n_reducers
        n_pages = -(-2 * self.division.size // page_bytes)
        bounds = [n_pages * part // n_reducers * page_bytes for part in range(n_reducers + 1)]
        own = [slice(*bounds[self.reducer : self.reducer + 2])] if self.reducer is not None else []
        return self._allocator.shared(n_pages * page_bytes, "parameters", own).view(np.uint16)[: self.division.size]

    def zeros(self, n: int, role: str) -> np.ndarray:
        """Return ``n`` vectors in shared memory, float32 (n, S), each aligned to a page. All ranks must call."""
        return vectors(self._allocator, self.division, self.reducer, n, role)

    def _slots(self) -> list[np.ndarray]:
        """Return the workers' slots, (workers of the node, S), or if chunked their two halves, (workers, chunk)."""
        if not self._chunked:
            owner = self.reducer if self._sums.total is None else None
            row = self.worker if self._sums.total is not None and self.worker >= 0 else None
            return [vectors(self._allocator, self.division, owner, self._n_taken, "gradients", row)[: self.n_workers]]
        n_rows, row_bytes = 2 * self._n_taken, self.division.chunk * ITEM_BYTES
        part = self.division.within(self.reducer) if self.reducer is not None else slice(0, 0)
        own_slices = [
            slice(row * row_bytes + part.start * ITEM_BYTES, row * row_bytes + part.stop * ITEM_BYTES)
            for row in range(n_rows)
        ]
        memory = self._allocator.shared(n_rows * row_bytes, "exchange", own_slices)
        return list(memory.view(np.float32).reshape(2, self._n_taken, self.division.chunk)[:, : self.n_workers])

    @property
    def is_current(self) -> bool:
        """True if every rank of the node knows the version of the parameters: the last change was a commit."""
        return self._current

    def publish(self) -> None:
        """Wait until all ranks of the node may read the parameters, which were written otherwise than by a step."""
        if not self._current:
            self.meeting.together()
        self._current = False  # only a step sets it; parameters written otherwise need a barrier

    def put(self, grads: np.ndarray, chunk: int = 0) -> None:
        """Announce the gradients of a chunk, after copying them to this worker's slot if they are not there."""
        half = chunk % 2
        if chunk > 1:
            self.meeting.wait(SUMMED[half])  # until the previous chunk of this half is summed
        if self.worker >= 0 and not self._chunked and grads is not self._arena.grads:
            self._arena.grads[:] = grads
            self.traffic.sum(grads.nbytes, 1)
        if self._own_slots:
            part = grads[self.division.chunks[chunk]]
            self._own_slots[half][: len(part)] = part
            self.traffic.sum(part.nbytes, 1)
        self.meeting.meet(READY[half], self.meeting.everyone, waits=False)
        if chunk == 0:
            self.traffic.remote += self._sums.remote

    def sum(self) -> None:
        """Add what this rank adds of its domain's gradients, once those are announced. All ranks must call."""
        self._sums.sum()

    def wait(self, chunk: int = 0) -> None:
        """Wait until the rows of a chunk's part can be summed. Reducers call."""
        self._sums.wait(chunk)

    def commit(self) -> None:
        """Make the step current once all reducers are done, or drop it where one of them objects."""
        gates, arena = self.meeting.gates, self._arena
        if arena.nonfinite:
            gates.object(COMMITTED)
        self.meeting.meet(COMMITTED, self.reducing, late=self._sums.late)
        arena.nonfinite = arena.drops_unsound and gates.is_objected(COMMITTED)
        arena.end_step()
        self._current = True
