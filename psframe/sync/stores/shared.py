"""``shared`` (:class:`Shared`): a store in a node's shared memory. A pull is a copy, a push a sum in place."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from psframe import compiled
from psframe.cluster.gates import LOOK_S
from psframe.cluster.roles import Team
from psframe.collectives.segments import divide, vectors
from psframe.memory.allocator import Allocator
from psframe.sync.stores.base import HEADER, Store

#: counters: the clock, copies begun, numbers drawn, posts; then posts and grants of each worker; then stripes
CLOCK, BEGUN, DRAWN, POSTS, WORKERS = range(5)
STRIPES = 32  # most locks of a vector, so that pushes can run concurrently
STRIPE = 1 << 14  # least numbers of one
NO_MORE = 1 << 30  # added to the numbers drawn; more than any epoch has
WRAP = (1 << 32) - 1  # counters are of 32 bits
TRIES = 8  # of a pull, before it makes the writer wait


class Shared(Store):
    """See :class:`psframe.sync.stores.base.Store`. Ranks that wait for a lock detect the death of its holder."""

    def __init__(self, team: Team, size: int, allocator: Allocator, copies: int, rows: int):
        super().__init__(team, size, allocator, copies, rows)
        if team.cluster is None:
            raise AssertionError("a store in shared memory needs its cluster")
        self.meeting, self.barrier = team.cluster.rendezvous, team.cluster.barrier
        me, n_ranks = team.cluster.node_rank, len(self.meeting.members)
        page_bytes = max(allocator.home(role).page_bytes for role in ("parameters", "exchange"))
        # with one writer, all pages are its own; else they are divided among the ranks
        division = divide(size, page_bytes, 0, 1 if copies > 1 else n_ranks)
        owner = me if me < division.n_reducers else None
        self.params = list(vectors(allocator, division, owner, copies, "parameters"))
        n_workers = team.n_workers if rows else 0
        mail = vectors(allocator, divide(size, page_bytes, 0, 1), 0 if me == 0 else None, n_workers * rows, "exchange")
        self.inbox = mail.reshape(n_workers, rows, size) if rows else None
        self.stripes = [slice(at, at + self._stripe()) for at in range(0, size, self._stripe())]
        self._counters(allocator, n_workers, page_bytes, me)
        self.posted, self.taken = 0, [0] * n_workers
        self.collected, self.next = 0, 0

    def _stripe(self) -> int:
        return max(STRIPE, -(-self.size // STRIPES))

    def _counters(self, allocator: Allocator, n_workers: int, page_bytes: int, me: int) -> None:
        n = WORKERS + 2 * n_workers + len(self.stripes)
        self.first_stripe = WORKERS + 2 * n_workers
        notes_bytes, each = n_workers * (HEADER + 1) * 8, compiled.sync.Counters.EACH
        n_bytes = -(-(n * each + notes_bytes) // page_bytes) * page_bytes
        memory = allocator.shared(n_bytes, "exchange", [slice(0, n_bytes)] if me == 0 else [])
        self.counters = compiled.sync.Counters(memory, n)
        notes = memory[n * each : n * each + notes_bytes].view(np.float64).reshape(n_workers, HEADER + 1)
        self.headers, self.words = notes[:, :HEADER], notes[:, HEADER]

    def open(self) -> None:
        self.counters.spins = self.meeting.gates.spins
        self.barrier()

    @property
    def clock(self) -> int:
        return int(self.counters.load(CLOCK))

    def pull(self, out: np.ndarray) -> int:
        self.traffic.sum(out.nbytes, 1)
        if self.copies == 1:
            return self._copied(out)
        for _ in range(TRIES):
            clock = self._copied(out)
            # the copy just read is overwritten two clocks later
            if (self.counters.load(BEGUN) - clock) & WRAP < self.copies:
                return clock
        self._lock(CLOCK)
        clock = self._copied(out)
        self.counters.unlock(CLOCK)
        return clock

    def _copied(self, out: np.ndarray) -> int:
        """Copy the current parameters to ``out`` (S,); return the clock before the copy."""
        clock = self.clock
        np.copyto(out, self.params[clock % self.copies])
        return clock

    def push(self, delta: np.ndarray) -> int:
        params = self.params[0]
        self.traffic.sum(delta.nbytes, 2)
        for number, stripe in enumerate(self.stripes):
            self._lock(self.first_stripe + number)
            np.add(params[stripe], delta[stripe], out=params[stripe])
            self.counters.unlock(self.first_stripe + number)
        return int(self.counters.add(CLOCK))

    def tick(self) -> int:
        """Count an update that this rank wrote to the parameters in place; return the clock before."""
        return int(self.counters.add(CLOCK))

    def next_ticket(self) -> int:
        return int(self.counters.add(DRAWN))

    def close_tickets(self) -> int:
        return int(self.counters.add(DRAWN, NO_MORE))

    def rest(self) -> None:
        self.barrier()
        if self.team.comm.rank == 0:
            self.counters.add(DRAWN, -self.counters.load(DRAWN) & WRAP)
        self.barrier()

    def slot(self) -> np.ndarray | None:
        slot: np.ndarray = self.inbox[self._worker(), 0]
        return slot

    def post(self, vectors: Sequence[np.ndarray], *note: float) -> None:
        worker = self._worker()
        self._until(self._grants(worker), self.posted)
        for row, vector in zip(self.inbox[worker], vectors, strict=False):
            if vector.ctypes.data != row.ctypes.data:
                np.copyto(row, vector)
                self.traffic.sum(vector.nbytes, 1)
        self.headers[worker, : len(note)] = note
        self.posted = (self.posted + 1) & WRAP
        self.counters.add(self._posts(worker))
        self.counters.add(POSTS)

    def wait_ack(self) -> int:
        worker = self._worker()
        self._until(self._grants(worker), self.posted)
        return int(self.words[worker])

    def collect(self) -> int:
        self.collected = (self.collected + 1) & WRAP
        self._until(POSTS, self.collected)
        n_workers = len(self.taken)
        for worker in (*range(self.next, n_workers), *range(self.next)):
            if self.counters.load(self._posts(worker)) != self.taken[worker]:
                self.taken[worker] = (self.taken[worker] + 1) & WRAP
                self.next = (worker + 1) % n_workers  # round robin: the worker served last comes last
                return worker
        raise AssertionError("a post was counted that nobody made")

    def ack(self, worker: int, word: int = 0) -> None:
        self.words[worker] = word
        self.counters.add(self._grants(worker))

    def begin(self) -> None:
        self._lock(CLOCK)
        self.counters.add(BEGUN)

    def commit(self) -> None:
        self.counters.add(CLOCK)
        self.counters.unlock(CLOCK)

    def _worker(self) -> int:
        if self.team.worker is None:
            raise AssertionError("only workers post")
        return self.team.worker

    def _posts(self, worker: int) -> int:
        return WORKERS + 2 * worker

    def _grants(self, worker: int) -> int:
        return WORKERS + 2 * worker + 1

    def _until(self, counter: int, value: int) -> None:
        if not self.counters.wait(counter, value, LOOK_S):
            self.meeting.until(partial(self.counters.wait, counter, value))

    def _lock(self, counter: int) -> None:
        if not self.counters.lock(counter, LOOK_S):
            self.meeting.until(partial(self.counters.lock, counter))
