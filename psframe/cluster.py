"""Who takes part: ranks, nodes, workers, and how they agree before training starts."""

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any, TypeVar

from mpi4py import MPI

from psframe.errors import UserError
from psframe.memory.link import LeaderEnded, Link, accept, connect, listen

T = TypeVar("T")


class AgreedError(UserError):
    """A UserError that every rank has raised: all can leave together."""


@dataclass(frozen=True)
class Cluster:
    """The ranks of a job, grouped into nodes.

    Attributes
    ----------
    comm : MPI.Comm
        All ranks, numbered node by node; rank 0 is the world's rank 0.
    link : Link
        To the ranks of this node.
    node : int
        Number of this rank's node, 0 to n_nodes - 1.
    node_rank : int
        Place of this rank in its node; 0 is the node's first rank.
    leaders : MPI.Comm
        On a node's first rank: the first ranks of all nodes. Elsewhere MPI.COMM_NULL.
    """

    comm: MPI.Comm
    link: Link
    node: int
    node_rank: int
    n_nodes: int
    leaders: MPI.Comm

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def n_ranks(self) -> int:
        return self.comm.size

    def agree(self, judge: Callable[[], T]) -> T:
        """Run ``judge`` on rank 0; its result (plain values), or its UserError, is every rank's. All must call."""
        verdict = _verdict(judge) if self.rank == 0 else None
        if self.leaders != MPI.COMM_NULL:
            verdict = self.leaders.bcast(verdict)
        return _open(self.link.tell(verdict))

    def agree_by_node(self, judge: Callable[[], T]) -> T:
        """Run ``judge`` on each node's first rank; its result is that node's, the first UserError every rank's."""
        verdict = _verdict(judge) if self.node_rank == 0 else None
        if self.leaders != MPI.COMM_NULL:
            failed = [v for v in self.leaders.allgather(verdict) if v and "error" in v]
            verdict = failed[0] if failed else verdict
        return _open(self.link.tell(verdict))

    def agree_everywhere(self, judge: Callable[[], T]) -> T:
        """Run ``judge`` on every rank and return its own result; the first UserError is every rank's."""
        result, error = None, None
        try:
            result = judge()
        except UserError as raised:
            error = str(raised)
        for message in self.comm.allgather(error):
            if message is not None:
                raise AgreedError(message)
        return result  # type: ignore[return-value]

    @cached_property
    def clock_offset_s(self) -> float:
        """Seconds to add to this rank's ``time.perf_counter`` for rank 0's. All ranks must read it together."""
        if self.n_nodes == 1:
            return 0.0  # CLOCK_MONOTONIC is one clock for a machine
        return float(self.link.tell(_offset_s(self.leaders) if self.node_rank == 0 else None))


def _verdict(judge: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"result": judge()}
    except UserError as error:
        return {"error": str(error)}


def _open(verdict: dict[str, Any]) -> Any:
    if "error" in verdict:
        raise AgreedError(verdict["error"])
    return verdict["result"]


def _offset_s(comm: MPI.Comm, rounds: int = 16) -> float:
    """Estimate the offset to rank 0's clock from the fastest of some round trips (Cristian 1989)."""
    best_s, offset_s = float("inf"), 0.0
    for peer in range(1, comm.size):
        for _ in range(rounds):
            if comm.rank == peer:
                sent = perf_counter()
                theirs = comm.sendrecv(None, 0, source=0)
                back = perf_counter()
                if back - sent < best_s:
                    best_s, offset_s = back - sent, theirs - (sent + back) / 2
            elif comm.rank == 0:
                comm.recv(source=peer)
                comm.send(perf_counter(), peer)
    return offset_s


def join(world: MPI.Comm | None = None) -> Cluster:
    """Find the nodes, by proof of shared memory, and number ranks node by node. All ranks must call."""
    world = MPI.COMM_WORLD if world is None else world
    near, link = _prove(world.Split_type(MPI.COMM_TYPE_SHARED, key=world.rank))
    first = near.bcast(world.rank)
    firsts = sorted(set(world.allgather(first)))
    node = firsts.index(first)
    comm = world.Split(0, key=node * world.size + near.rank)
    leaders = comm.Split(0 if near.rank == 0 else MPI.UNDEFINED, key=node)
    return Cluster(comm, link, node, near.rank, len(firsts), leaders)


def _prove(candidates: MPI.Comm) -> tuple[MPI.Comm, Link]:
    """Return this rank's node as a communicator and its link; ``candidates`` are those that MPI takes for one node."""
    while candidates.size > 1:
        leads = candidates.rank == 0
        server, name = listen(candidates.size) if leads else (None, "")
        name = candidates.bcast(name)
        peer = None if leads else connect(name)
        connected = candidates.gather(peer is not None)
        if server is not None and connected is not None:
            peers = accept(server, sum(connected))
            server.close()
        else:
            peers = [peer] if peer else []
        proven = leads or bool(peers)
        link = Link(peers, leads)
        if proven:
            proven = _same_memory(link)
        everyone = candidates.allgather(proven)
        if all(everyone):
            return candidates, link
        link.close()
        # the ranks that share memory with the first try again among themselves, and so do the others
        candidates = candidates.Split(0 if proven else 1, key=candidates.rank)
    return candidates, Link([], True)


def _same_memory(link: Link) -> bool:
    """Whether this rank reads in a shared mapping what the node's first rank wrote there."""
    try:
        memory = link.share(16)
    except (OSError, LeaderEnded):
        return link.leads
    if link.leads:
        memory[:] = list(secrets.token_bytes(16))
    token = link.tell(memory.tolist() if link.leads else None)
    return bool(memory.tolist() == token)


@dataclass(frozen=True)
class Team:
    """The ranks of a job in their roles; workers are numbered in rank order, so node by node.

    Attributes
    ----------
    comm : MPI.Comm
        All ranks; rank 0 owns version and checkpoints.
    server : str or None
        What rank 0 is: ``dedicated`` (applies updates, computes no gradient), ``colocated`` (does both), or None where
        every rank applies them.
    """

    comm: MPI.Comm
    server: str | None

    @property
    def n_workers(self) -> int:
        return self.comm.size - (self.server == "dedicated")

    @property
    def worker(self) -> int | None:
        """This worker's number, 0 to n_workers - 1; None on a dedicated server."""
        number = self.comm.rank - (self.server == "dedicated")
        return number if number >= 0 else None

    @property
    def applies(self) -> bool:
        """Whether this rank applies updates, and so keeps optimizer state."""
        return self.server is None or self.comm.rank == 0
