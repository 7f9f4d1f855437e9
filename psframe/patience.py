"""How a rank waits for other nodes over MPI, which by itself waits for ever, and spins."""

import os
from collections.abc import Sequence
from time import perf_counter
from typing import Any, Protocol

from psframe.memory.gates import PeerLost, Rendezvous

#: the most that counts between two looks, in seconds: a job that was stopped as a whole has not been late
LONGEST_S = 1.0


class Request(Protocol):
    """What must be known of an exchange that is under way: an MPI.Request, or several as one."""

    def Test(self) -> bool: ...

    def Wait(self) -> Any: ...


class NodeLost(PeerLost):
    """A node that others wait for does not come; MPI, and a launcher, may not come through to it either."""


class Patience:
    """Looks again and again, lets other ranks run between two looks, and gives up after ``sync.deadline_s``.

    Parameters
    ----------
    meeting : Rendezvous
        Of this node: has the deadline, and who tells the user.
    hosts : sequence of str
        By node, its name.
    node : int
        This rank's.
    """

    def __init__(self, meeting: Rendezvous, hosts: Sequence[str], node: int):
        self.meeting, self.hosts, self.node = meeting, hosts, node
        self.others = [number for number in range(len(hosts)) if number != node]
        self.begin()

    def begin(self) -> None:
        """Begin to wait for something new."""
        self.waited_s, self.looked = 0.0, perf_counter()

    def look(self, nodes: Sequence[int]) -> None:
        """Let some time pass, while waiting for ``nodes``.

        Raises
        ------
        NodeLost
            Where the deadline has passed since the last :meth:`begin`.
        """
        now = perf_counter()
        self.waited_s += min(now - self.looked, LONGEST_S)
        self.looked = now
        if self.waited_s > self.meeting.deadline_s:
            self._give_up(nodes)
        os.sched_yield()

    def wait(self, request: Request, nodes: Sequence[int] = ()) -> None:
        """Wait for a request in which ``nodes`` have their part, by default all others; NodeLost as above."""
        self.begin()
        while not request.Test():
            self.look(nodes or self.others)

    def _give_up(self, nodes: Sequence[int]) -> None:
        named = ", ".join(f"{node} ({self.hosts[node]})" for node in nodes)
        raise NodeLost(
            f"node {named} did not come to an exchange for {self.meeting.deadline_s:g} s (sync.deadline_s), or cannot "
            f"be reached from {self.hosts[self.node]}, and the others cannot go on without it",
            (),
            self.meeting.told_at.tell(),
            False,
        )
