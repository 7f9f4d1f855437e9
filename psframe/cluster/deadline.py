"""Waits for other nodes over MPI with a deadline (:class:`DeadlineWaiter`): MPI itself waits forever, and spins."""

import os
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from psframe.cluster.gates import PeerLost, Rendezvous
from psframe.cluster.heartbeat import Pulse
from psframe.record.flight import NODES, phase

ROLL = 0x5F01  # MPI tag of the roll call to the other nodes
#: most seconds that count between two polls: a job that was suspended is not late
LONGEST_S = 1.0


class Request(Protocol):
    """An exchange in progress: an MPI.Request, or several as one."""

    def Test(self) -> bool: ...

    def Wait(self) -> Any: ...


def all_done(requests: Sequence[Request]) -> bool:
    """Return True if all requests are complete; a test of one lets MPI progress all."""
    return all(request.Test() for request in requests)


class NodeLost(PeerLost):
    """A node that others wait for does not arrive; MPI and the launcher may be unable to reach it, too."""


class DeadlineWaiter:
    """Polling wait that yields to other ranks between polls, and gives up after ``sync.deadline_s``.

    Parameters
    ----------
    meeting : Rendezvous
        Of this node: holds the deadline, and chooses the rank that reports to the user.
    pulse : Pulse
        Shows the ranks of this node that this one waits for other nodes.
    lane : MPI.Comm
        Of this rank and those of other nodes that wait when it does.
    nodes : sequence of int
        Node of each rank of ``lane``.
    hosts : sequence of str
        Host name of each node.
    """

    def __init__(self, meeting: Rendezvous, pulse: Pulse, lane: MPI.Comm, nodes: Sequence[int], hosts: Sequence[str]):
        self.meeting, self.pulse, self.lane, self.nodes, self.hosts = meeting, pulse, lane, tuple(nodes), hosts
        self.node = self.nodes[lane.rank]
        self.others = [number for number in range(len(hosts)) if number != self.node]
        meeting.is_away = pulse.is_away
        self.begin()

    def begin(self) -> None:
        """Begin a new wait, or end waiting."""
        self.waited_s, self.looked, self.away = 0.0, perf_counter(), False
        self.pulse.return_()

    def look(self, nodes: Sequence[int]) -> None:
        """Count the time since the last poll, and yield, while waiting for ``nodes``.

        Raises
        ------
        NodeLost
            If the deadline has passed since the last :meth:`begin`.
        """
        now = perf_counter()
        self.waited_s += min(now - self.looked, LONGEST_S)
        self.looked = now
        if not self.away:
            self.away = True
            self.pulse.leave()
        if self.waited_s > self.meeting.deadline_s:
            self._give_up(nodes)
        os.sched_yield()

    def wait(self, request: Request, nodes: Sequence[int] = ()) -> None:
        """Wait for a request that ``nodes`` take part in, by default all others; raises NodeLost like :meth:`look`."""
        self.begin()
        with phase(NODES):
            while not request.Test():
                self.look(nodes or self.others)
        self.begin()

    def gather(self, comm: MPI.Comm, data: bytes) -> list[bytes] | None:
        """Return every rank's ``data``, by rank of ``comm``, on its rank 0; None elsewhere. All of them must call."""
        own, lengths = np.frombuffer(data, np.uint8), np.zeros(comm.size, np.int64)
        self.wait(comm.Igather(np.array([len(own)]), lengths if comm.rank == 0 else None))
        every = np.empty(int(lengths.sum()), np.uint8)
        self.wait(comm.Igatherv(own, [every, lengths, MPI.BYTE] if comm.rank == 0 else None))
        ends = np.cumsum(lengths)
        parts = np.split(every, ends[:-1])
        return [part.tobytes() for part in parts] if comm.rank == 0 else None

    def bcast(self, comm: MPI.Comm, data: bytes) -> bytes:
        """Return the ``data`` of rank 0 of ``comm``. All of its ranks must call."""
        length = np.array([len(data)])
        self.wait(comm.Ibcast(length))
        words = np.frombuffer(data, np.uint8) if comm.rank == 0 else np.empty(int(length[0]), np.uint8)
        self.wait(comm.Ibcast(words))
        return words.tobytes()

    def _give_up(self, nodes: Sequence[int]) -> None:
        reachable = self._roll()
        lost = [node for node in self.nodes if node not in reachable] or list(nodes)
        noun = "nodes" if len(lost) > 1 else "node"
        named = ", ".join(f"{node} ({self.hosts[node]})" for node in lost)
        first = self.meeting.told_at.tell() and self.node == min(reachable)
        raise NodeLost(
            f"{noun} {named} did not come to an exchange for {self.meeting.deadline_s:g} s (sync.deadline_s), or "
            f"cannot be reached from {self.hosts[self.node]}, and the others cannot go on without "
            f"{'them' if len(lost) > 1 else 'it'}",
            (),
            first,
            False,
        )

    def _roll(self) -> set[int]:
        """Return the reachable nodes that have waited, too; the missing node is not among them."""
        reachable, word, timeout_s = {self.node}, np.zeros(1, np.uint8), self.meeting.roll_s
        began = perf_counter()
        try:
            peers = [rank for rank in range(self.lane.size) if rank != self.lane.rank]
            sent = [self.lane.Isend(word, rank, ROLL) for rank in peers]
            receives = {rank: self.lane.Irecv(np.zeros(1, np.uint8), rank, ROLL) for rank in peers}
            while receives and perf_counter() - began < timeout_s:
                for rank in [rank for rank, request in receives.items() if request.Test()]:
                    del receives[rank]
                    reachable.add(self.nodes[rank])
                os.sched_yield()
            while not all_done(sent) and perf_counter() - began < timeout_s:
                os.sched_yield()
        except MPI.Exception:  # some ranks are gone
            pass
        return reachable
