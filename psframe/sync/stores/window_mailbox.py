"""Mailbox in rank 0's memory (:class:`WindowMailbox`): a post is an MPI put from any node, and a short message."""

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from psframe.cluster.roles import Team
from psframe.memory.allocator import Allocator
from psframe.record.traffic import Traffic
from psframe.sync.stores.mailbox import HEADER, Mailbox

POST, GRANT = 1, 2  # tags


class WindowMailbox(Mailbox):
    """See :class:`psframe.sync.stores.mailbox.Mailbox`."""

    def __init__(self, team: Team, size: int, allocator: Allocator, rows: int, traffic: Traffic):
        self._team, self._size, self._rows, self._traffic = team, size, rows, traffic
        n_here = team.n_workers if team.comm.rank == 0 else 0
        self.inbox = allocator.zeros((n_here, rows, size), np.float32, "exchange")
        self.headers = np.zeros((team.n_workers, HEADER))
        self._note, self._reply = np.zeros(HEADER), np.zeros(1)
        self._n_posted = self._n_granted = 0

    def open(self, comm: MPI.Intracomm, window: MPI.Win) -> None:
        """Take the store's communicator, and the window of :attr:`inbox`."""
        self._comm, self._window = comm, window

    def deliver(self, vectors: Sequence[np.ndarray]) -> None:
        worker = self._team.worker
        assert worker is not None
        for row, vector in enumerate(vectors):
            self._window.Put(vector, 0, (worker * self._rows + row) * self._size)
            self._traffic.transfer(vector.nbytes)
        self._window.Flush(0)

    def announce(self, note: Sequence[float]) -> None:
        self._note[: len(note)] = note
        self._n_posted += 1
        self._comm.Send(self._note, 0, POST)

    def wait_ack(self) -> int:
        while self._n_granted < self._n_posted:
            self._comm.Recv(self._reply, 0, GRANT)
            self._n_granted += 1
        return int(self._reply[0])

    def collect(self) -> int:
        status = MPI.Status()
        self._comm.Recv(self._note, MPI.ANY_SOURCE, POST, status)
        worker = self._team.worker_of_rank[status.Get_source()]
        self.headers[worker] = self._note
        self._window.Sync()  # makes puts visible to loads
        return worker

    def ack(self, worker: int, word: int = 0) -> None:
        self._reply[0] = word
        self._comm.Send(self._reply, self._team.workers[worker], GRANT)
