"""``shared`` (:class:`SharedStore`): a store in a node's shared memory. A pull is a copy, a push a sum in place."""

from functools import partial

import numpy as np

from psframe.cluster.counters import WRAP, NodeCounters
from psframe.cluster.roles import Team
from psframe.collectives.segments import divide, vectors
from psframe.errors import UserError
from psframe.memory.allocator import Allocator, shared_block
from psframe.record.traffic import Traffic
from psframe.sync.stores.base import Store, Tickets
from psframe.sync.stores.shared_mailbox import SharedMailbox

#: counters: the clock, copies begun, tickets; then the locks of the stripes
CLOCK, BEGUN, TICKETS, LOCKS = range(4)
STRIPES = 32  # most locks of a vector, so that pushes can run concurrently
STRIPE = 1 << 14  # least numbers of one
TRIES = 8  # of a pull, before it makes the writer wait


class SharedStore(Store):
    """See :class:`psframe.sync.stores.base.Store`. Ranks that wait for a lock detect the death of its holder."""

    def __init__(self, team: Team, size: int, allocator: Allocator, copies: int, traffic: Traffic):
        super().__init__(team, size, allocator, copies, traffic)
        if team.cluster is None:
            raise AssertionError("a store in shared memory needs its cluster")
        if team.cluster.n_nodes > 1:
            raise UserError(
                f"sync.store: shared must have all ranks on one node, got {team.cluster.n_nodes} nodes; give "
                "sync.store=window"
            )
        self._barrier = team.cluster.barrier
        me, meeting = team.cluster.node_rank, team.cluster.rendezvous
        page_bytes = allocator.home("parameters").page_bytes
        # with one writer, all pages are its own; else they are divided among the ranks
        division = divide(size, page_bytes, 0, 1 if copies > 1 else len(meeting.members))
        owner = me if me < division.n_reducers else None
        self.params = list(vectors(allocator, division, owner, copies, "parameters"))
        stripe = max(STRIPE, -(-size // STRIPES))
        self._stripes = [slice(at, at + stripe) for at in range(0, size, stripe)]
        n = LOCKS + len(self._stripes)
        memory = shared_block(allocator, NodeCounters.n_bytes(n), "exchange", me == 0)
        self._counters = NodeCounters(memory, n, meeting)
        self.tickets = Tickets(partial(self._counters.add, TICKETS))

    def mailbox(self, rows: int) -> SharedMailbox:
        return SharedMailbox(self._team, self._size, self._allocator, rows, self._traffic)

    def open(self) -> None:
        self._barrier()

    @property
    def clock(self) -> int:
        """Number of pushes applied, or of updates made by the server."""
        return int(self._counters.load(CLOCK))

    def pull(self, out: np.ndarray) -> int:
        if self._copies == 1:
            return self._copied(out)
        for _ in range(TRIES):
            clock = self._copied(out)
            # the copy just read is overwritten two clocks later
            if (self._counters.load(BEGUN) - clock) & WRAP < self._copies:
                return clock
        self._counters.lock(CLOCK)
        clock = self._copied(out)
        self._counters.unlock(CLOCK)
        return clock

    def _copied(self, out: np.ndarray) -> int:
        """Copy the current parameters to ``out`` (S,); return the clock before the copy."""
        clock = self.clock
        np.copyto(out, self.params[clock % self._copies])
        self._traffic.sum(out.nbytes, 1)
        return clock

    def push(self, delta: np.ndarray) -> int:
        params = self.params[0]
        self._traffic.sum(delta.nbytes, 2)
        for lock, stripe in enumerate(self._stripes, LOCKS):
            self._counters.lock(lock)
            np.add(params[stripe], delta[stripe], out=params[stripe])
            self._counters.unlock(lock)
        return self.tick()

    def tick(self) -> int:
        """Count an update that this rank wrote to the parameters in place; return the clock before."""
        return int(self._counters.add(CLOCK))

    def rest(self) -> None:
        self._barrier()
        if self._team.comm.rank == 0:
            self._counters.add(TICKETS, -self._counters.load(TICKETS) & WRAP)
        self._barrier()

    def _begin(self) -> None:
        self._counters.lock(CLOCK)
        self._counters.add(BEGUN)

    def _commit(self) -> None:
        self._counters.add(CLOCK)
        self._counters.unlock(CLOCK)
