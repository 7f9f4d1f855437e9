"""Nodes of virtual ranks: their memory (:class:`VirtualLink`), and their waits (:class:`VirtualWaiter`)."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from psframe import compiled
from psframe.cluster import communicators
from psframe.cluster.deadline import DeadlineWaiter, Request
from psframe.cluster.joining import Site
from psframe.cluster.node_channel import Link, Place
from psframe.cluster.nodes import control_bytes
from psframe.virtual.comm import VirtualComm
from psframe.virtual.gates import VirtualRendezvous
from psframe.virtual.job import Job
from psframe.virtual.scheduler import Scheduler
from psframe.virtual.space import Space


class VirtualLink(Link):
    """Link over a communicator of the node's ranks, without sockets."""

    def __init__(self, near: VirtualComm):
        super().__init__([], near.rank == 0)
        self.near = near

    def spread(self, frame: bytes) -> bytes:
        heard: bytes = self.near.bcast(frame)
        return heard

    def gather(self, frame: bytes) -> list[bytes]:
        return self.near.gather(frame) or []

    def call(self, message: Any) -> None:
        self.tell(message)  # without waiting for those that hear it

    def call_off(self) -> None:
        self.near.Revoke()

    def share(self, n_bytes: int, page_bytes: int = 0, place: Place | None = None, take: bool = True) -> np.ndarray:
        shared: np.ndarray = self.near.shared(partial(memory, n_bytes))
        return shared


class VirtualWaiter(DeadlineWaiter):
    """Waits for other nodes in the scheduler; no deadline passes."""

    lane: Any
    _seen = -1  # events before the last look

    def look(self, nodes: Sequence[int]) -> None:
        ranks = self.lane.ranks
        if ranks.n_events == self._seen:  # nothing has happened since before the caller looked
            self.lane.require(self.lane.numbers)
            ranks.block()
        self._seen = ranks.n_events

    def wait(self, request: Request, nodes: Sequence[int] = ()) -> None:
        request.Wait()


def memory(n_bytes: int) -> np.ndarray:
    """Return zeroed, page-aligned memory, uint8 (n_bytes,), of which no page is touched."""
    return np.frombuffer(compiled.numa.Block(max(1, n_bytes)), np.uint8)[:n_bytes]


def site(world: VirtualComm) -> Site:
    """Return the node of a virtual rank. All ranks of the communicator must call."""
    node = world.job.node_of[world.numbers[world.rank]]
    near = communicators.keep(world.Split(node, world.rank))
    control = near.shared(partial(memory, control_bytes(near.size)))
    meet = partial(_meet, near, control)
    host = f"node{node}"  # its ranks lie in the memory of this process, and do not touch most of theirs
    return Site(near, VirtualLink(near), control, meet, VirtualWaiter, host, True, outlives=True, checks_memory=False)


def world(ranks: Scheduler, job: Job) -> list[VirtualComm]:
    """Return the communicator of all ranks of a scheduler, as seen from each."""
    space = Space(range(len(ranks.ranks)), job.node_of)
    return [VirtualComm(ranks, space, rank, job) for rank in space.numbers]


def _meet(near: VirtualComm, control: np.ndarray, me: int, members: Sequence[int]) -> VirtualRendezvous:
    return VirtualRendezvous(near.ranks, control, me, members, near.numbers)
