"""Mailbox in a node's shared memory (:class:`SharedMailbox`): a post is a copy, or no copy from its slot."""

from collections.abc import Sequence

import numpy as np

from psframe.cluster.counters import WRAP, NodeCounters
from psframe.cluster.roles import Team
from psframe.collectives.segments import divide, vectors
from psframe.memory.allocator import Allocator, shared_block
from psframe.record.traffic import Traffic
from psframe.sync.stores.mailbox import HEADER, Mailbox

#: counters: posts of all workers; then posts and grants of each
POSTS, WORKERS = range(2)


class SharedMailbox(Mailbox):
    """See :class:`psframe.sync.stores.mailbox.Mailbox`."""

    def __init__(self, team: Team, size: int, allocator: Allocator, rows: int, traffic: Traffic):
        cluster, n = team.cluster, team.n_workers
        assert cluster is not None
        me, self._me, self._traffic = cluster.node_rank, team.worker, traffic
        page_bytes = allocator.home("exchange").page_bytes
        mail = vectors(allocator, divide(size, page_bytes, 0, 1), 0 if me == 0 else None, n * rows, "exchange")
        self.inbox = mail.reshape(n, rows, size)
        n_bytes, notes_bytes = NodeCounters.n_bytes(WORKERS + 2 * n), n * (HEADER + 1) * 8
        memory = shared_block(allocator, n_bytes + notes_bytes, "exchange", me == 0)
        self._counters = NodeCounters(memory, WORKERS + 2 * n, cluster.rendezvous)
        notes = memory[n_bytes : n_bytes + notes_bytes].view(np.float64).reshape(n, HEADER + 1)
        self.headers, self._words = notes[:, :HEADER], notes[:, HEADER]
        self._n_posted, self._n_taken, self._n_collected, self._next = 0, [0] * n, 0, 0

    def slot(self) -> np.ndarray | None:
        slot: np.ndarray = self.inbox[self._worker(), 0]
        return slot

    def deliver(self, vectors: Sequence[np.ndarray]) -> None:
        for row, vector in zip(self.inbox[self._worker()], vectors, strict=False):
            if vector.ctypes.data != row.ctypes.data:
                np.copyto(row, vector)
                self._traffic.sum(vector.nbytes, 1)

    def announce(self, note: Sequence[float]) -> None:
        worker = self._worker()
        self.headers[worker, : len(note)] = note
        self._n_posted += 1
        self._counters.add(_posts(worker))
        self._counters.add(POSTS)

    def wait_ack(self) -> int:
        worker = self._worker()
        self._counters.until(_grants(worker), self._n_posted)
        return int(self._words[worker])

    def collect(self) -> int:
        self._n_collected += 1
        self._counters.until(POSTS, self._n_collected)
        n_workers = len(self._n_taken)
        for worker in (*range(self._next, n_workers), *range(self._next)):
            if self._counters.load(_posts(worker)) != self._n_taken[worker]:
                self._n_taken[worker] = (self._n_taken[worker] + 1) & WRAP
                self._next = (worker + 1) % n_workers  # round robin: the worker served last comes last
                return worker
        raise AssertionError("a post was counted that nobody made")

    def ack(self, worker: int, word: int = 0) -> None:
        self._words[worker] = word
        self._counters.add(_grants(worker))

    def _worker(self) -> int:
        if self._me is None:
            raise AssertionError("only workers post")
        return self._me


def _posts(worker: int) -> int:
    return WORKERS + 2 * worker


def _grants(worker: int) -> int:
    return WORKERS + 2 * worker + 1
