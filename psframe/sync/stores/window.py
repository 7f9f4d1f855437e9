"""``window`` (:class:`WindowStore`): a store in rank 0's memory, reached from any node by MPI's one-sided operations.

Synchronization is passive-target. But an MPI may progress accesses to a rank only inside that rank's own calls, so rank
0 calls :meth:`WindowStore.progress` between layers, and waits in MPI for the end of an epoch. While it waits at a gate
for the ranks of its own group, the exchanges of other groups wait too.
"""

from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from psframe.cluster import communicators
from psframe.cluster.roles import Team
from psframe.cluster.watched import Window
from psframe.memory.allocator import Allocator
from psframe.record.traffic import Traffic
from psframe.sync.stores.base import Store, Tickets
from psframe.sync.stores.window_mailbox import WindowMailbox

CLOCK, BEGUN, TICKETS, HELD, WORDS = range(5)
TRIES = 8  # of a pull, before it asks rank 0 to wait


class WindowStore(Store):
    """See :class:`psframe.sync.stores.base.Store`."""

    def __init__(self, team: Team, size: int, allocator: Allocator, copies: int, traffic: Traffic):
        super().__init__(team, size, allocator, copies, traffic)
        self._is_home = team.comm.rank == 0
        at_home = 1 if self._is_home else 0
        self._vectors = allocator.zeros((at_home * copies, size), np.float32, "parameters")
        self.params = list(self._vectors)
        self._words = allocator.zeros(at_home * WORDS, np.int64, "exchange")
        self._old, self._summand, self._zero = np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64)
        self.tickets, self.progress = Tickets(partial(self._add, TICKETS)), self._progress
        self._mailbox: WindowMailbox | None = None
        self._windows: list[Window] = []

    def mailbox(self, rows: int) -> WindowMailbox:
        self._mailbox = WindowMailbox(self._team, self._size, self._allocator, rows, self._traffic)
        return self._mailbox

    def open(self) -> None:
        # a communicator of its own, so that no other message matches the store's
        comm: Any = communicators.keep(self._team.comm.Dup())
        self._comm = comm
        mail = [self._mailbox.inbox] if self._mailbox else []
        for memory in (self._vectors, self._words, *mail):
            window = self._comm.window(memory)
            window.Lock_all()
            self._windows.append(window)
        self._of_params, self._of_words = self._windows[:2]
        if self._mailbox:
            self._mailbox.open(self._comm, self._windows[2])
        self._comm.Barrier()

    def close(self) -> None:
        for window in self._windows:
            window.Unlock_all()
            window.Free()
        if self._windows:
            self._comm.Free()
        self._windows = []

    def _add(self, word: int, n: int) -> int:
        """Add ``n`` atomically to a word on rank 0; return its old value."""
        self._summand[0] = n
        self._of_words.Fetch_and_op(self._summand, self._old, 0, word, MPI.SUM)
        self._of_words.Flush(0)
        return int(self._old[0])

    def _load(self, word: int) -> int:
        """Return a word of rank 0, read atomically."""
        self._of_words.Fetch_and_op(self._zero, self._old, 0, word, MPI.NO_OP)
        self._of_words.Flush(0)
        return int(self._old[0])

    def pull(self, out: np.ndarray) -> int:
        if self._copies == 1:  # accumulate operations are atomic per element with concurrent pushes
            clock = self._load(CLOCK)
            self._of_params.Get_accumulate(out, out, 0, (0, self._size, MPI.FLOAT), MPI.NO_OP)
            self._of_params.Flush(0)
            self._traffic.transfer(out.nbytes)
            return clock
        for _ in range(TRIES):
            if (got := self._got(out)) is not None:
                return got
        self._add(HELD, 1)  # asks rank 0 not to begin another update
        while (got := self._got(out)) is None:
            pass
        self._add(HELD, -1)
        return got

    def _got(self, out: np.ndarray) -> int | None:
        """Get the parameters; return their clock, or None if they may have been overwritten meanwhile."""
        clock = self._load(CLOCK)
        self._of_params.Get(out, 0, (clock % self._copies) * self._size)
        self._of_params.Flush(0)
        self._traffic.transfer(out.nbytes)
        # the copy just read is overwritten two clocks later
        return clock if self._load(BEGUN) - clock < self._copies else None

    def push(self, delta: np.ndarray) -> int:
        self._of_params.Accumulate(delta, 0, 0, MPI.SUM)
        self._of_params.Flush(0)
        self._traffic.transfer(delta.nbytes)
        self._traffic.read += delta.nbytes  # the parameters added to
        return self._add(CLOCK, 1)

    def rest(self) -> None:
        self._comm.Barrier()  # in MPI, which progresses accesses to rank 0
        if self._is_home:
            self._of_words.Accumulate(self._zero, 0, TICKETS, MPI.REPLACE)
            self._of_words.Flush(0)
        self._comm.Barrier()

    def _progress(self) -> None:
        if self._is_home:
            self._comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)

    def _begin(self) -> None:
        while self._load(HELD):  # in MPI, which progresses the pull that asked
            self._comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
        self._add(BEGUN, 1)

    def _commit(self) -> None:
        self._of_params.Sync()  # makes stores visible to gets
        self._add(CLOCK, 1)
