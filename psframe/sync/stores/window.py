"""``window`` (:class:`Window`): a store in rank 0's memory, reached from any node by MPI's one-sided operations.

Synchronization is passive-target. But an MPI may progress accesses to a rank only inside that rank's own calls, so rank
0 calls :meth:`Window.progress` between layers, and waits in MPI for the end of an epoch. While it waits at a gate for
the ranks of its own group, the exchanges of other groups wait too.
"""

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from psframe.cluster import communicators
from psframe.cluster.roles import Team
from psframe.memory.allocator import Allocator
from psframe.sync.stores.base import HEADER, Store

CLOCK, BEGUN, DRAWN, HELD, WORDS = range(5)
POST, GRANT = 1, 2  # tags
TRIES = 8  # of a pull, before it asks rank 0 to wait


class Window(Store):
    """See :class:`psframe.sync.stores.base.Store`. A post is a put into rank 0's memory and a short message."""

    nearby = False

    def __init__(self, team: Team, size: int, allocator: Allocator, copies: int, rows: int):
        super().__init__(team, size, allocator, copies, rows)
        self.hosts = team.comm.rank == 0
        n_workers = team.n_workers if rows else 0
        at_home = 1 if self.hosts else 0
        self.held = allocator.zeros((at_home * copies, size), np.float32, "parameters")
        self.params = list(self.held)
        self.inbox = allocator.zeros((at_home * n_workers, rows, size), np.float32, "exchange")
        self.words = allocator.zeros(at_home * WORDS, np.int64, "exchange")
        self.headers = np.zeros((n_workers, HEADER))
        self.note, self.reply = np.zeros(HEADER), np.zeros(1)
        self.found, self.one, self.less = np.zeros(1, np.int64), np.ones(1, np.int64), -np.ones(1, np.int64)
        self.none, self.no_more = np.zeros(1, np.int64), np.full(1, 1 << 40, np.int64)
        self.posted = self.granted = 0
        self.windows: list[MPI.Win] = []

    def open(self) -> None:
        # a communicator of its own, so that no other message matches the store's
        self.comm = MPI.Intracomm(communicators.keep(self.team.comm.Dup()))
        for memory in (self.held, self.words, self.inbox):
            window = MPI.Win.Create(memory if memory.size else None, memory.itemsize, comm=self.comm)
            window.Lock_all()
            self.windows.append(window)
        self.of_params, self.of_words, self.of_mail = self.windows
        self.comm.Barrier()

    def close(self) -> None:
        for window in self.windows:
            window.Unlock_all()
            window.Free()
        if self.windows:
            self.comm.Free()
        self.windows = []

    def _word(self, number: int, add: np.ndarray) -> int:
        """Add ``add`` atomically to a word on rank 0; return its old value."""
        operation = MPI.NO_OP if add is self.none else MPI.SUM
        self.of_words.Fetch_and_op(add, self.found, 0, number, operation)
        self.of_words.Flush(0)
        return int(self.found[0])

    @property
    def clock(self) -> int:
        return self._word(CLOCK, self.none)

    def pull(self, out: np.ndarray) -> int:
        if self.copies == 1:  # accumulate operations are atomic per element with concurrent pushes
            clock = self.clock
            self.of_params.Get_accumulate(out, out, 0, (0, self.size, MPI.FLOAT), MPI.NO_OP)
            self.of_params.Flush(0)
            self._count(out.nbytes)
            return clock
        for _ in range(TRIES):
            if (got := self._got(out)) is not None:
                return got
        self._word(HELD, self.one)  # asks rank 0 not to begin another update
        while (got := self._got(out)) is None:
            pass
        self._word(HELD, self.less)
        return got

    def _got(self, out: np.ndarray) -> int | None:
        """Get the parameters; return their clock, or None if they may have been overwritten meanwhile."""
        clock = self.clock
        self.of_params.Get(out, 0, (clock % self.copies) * self.size)
        self.of_params.Flush(0)
        self._count(out.nbytes)
        # the copy just read is overwritten two clocks later
        return clock if self._word(BEGUN, self.none) - clock < self.copies else None

    def push(self, delta: np.ndarray) -> int:
        self.of_params.Accumulate(delta, 0, 0, MPI.SUM)
        self.of_params.Flush(0)
        self._count(delta.nbytes)
        self.traffic.read += delta.nbytes  # the parameters added to
        return self._word(CLOCK, self.one)

    def _count(self, n_bytes: int) -> None:
        """Count both ends of a transfer: the target does not."""
        self.traffic.send(n_bytes)
        self.traffic.receive(n_bytes)

    def next_ticket(self) -> int:
        return self._word(DRAWN, self.one)

    def close_tickets(self) -> int:
        return self._word(DRAWN, self.no_more)

    def rest(self) -> None:
        self.comm.Barrier()  # in MPI, which progresses accesses to rank 0
        if self.hosts:
            self.of_words.Accumulate(self.none, 0, DRAWN, MPI.REPLACE)
            self.of_words.Flush(0)
        self.comm.Barrier()

    def progress(self) -> None:
        if self.hosts:
            self.comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)

    def post(self, vectors: Sequence[np.ndarray], *note: float) -> None:
        self.wait_ack()
        worker = self.team.worker
        assert worker is not None
        for row, vector in enumerate(vectors):
            self.of_mail.Put(vector, 0, (worker * self.rows + row) * self.size)
            self._count(vector.nbytes)
        self.of_mail.Flush(0)
        self.note[: len(note)] = note
        self.posted += 1
        self.comm.Send(self.note, 0, POST)

    def wait_ack(self) -> int:
        while self.granted < self.posted:
            self.comm.Recv(self.reply, 0, GRANT)
            self.granted += 1
        return int(self.reply[0])

    def collect(self) -> int:
        status = MPI.Status()
        self.comm.Recv(self.note, MPI.ANY_SOURCE, POST, status)
        worker = self.team.worker_of_rank[status.Get_source()]
        self.headers[worker] = self.note
        self.of_mail.Sync()  # makes puts visible to loads
        return worker

    def ack(self, worker: int, word: int = 0) -> None:
        self.reply[0] = word
        self.comm.Send(self.reply, self.team.workers[worker], GRANT)

    def begin(self) -> None:
        while self._word(HELD, self.none):  # in MPI, which progresses the pull that asked
            self.comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
        self._word(BEGUN, self.one)

    def commit(self) -> None:
        self.of_params.Sync()  # makes stores visible to gets
        self._word(CLOCK, self.one)
