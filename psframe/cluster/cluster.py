"""Ranks and nodes of a job (:class:`Cluster`): discovery (:func:`join`), agreement before training, and waits."""

import json
import pickle
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from time import perf_counter
from typing import Any, TypeVar

from mpi4py import MPI

from psframe.cluster.deadline import DeadlineWaiter
from psframe.cluster.gates import Rendezvous
from psframe.cluster.heartbeat import Pulse
from psframe.cluster.node_channel import Link
from psframe.cluster.node_gather import Board
from psframe.cluster.stop_flag import StopFlag
from psframe.errors import UserError, sentence

T = TypeVar("T")


class AgreedError(UserError):
    """A UserError raised on every rank, so that all can exit together."""

    agreed = True


@dataclass(frozen=True)
class Cluster:
    """The ranks of a job, grouped into nodes.

    Attributes
    ----------
    world : MPI.Comm
        All ranks, in their original order.
    comm : MPI.Comm
        All ranks, numbered node by node; rank 0 is the world's rank 0.
    link : Link
        Sockets to the ranks of this node.
    node : int
        Number of this rank's node, 0 to n_nodes - 1.
    node_rank : int
        Number of this rank on its node; 0 is the node's first rank.
    lane : MPI.Comm
        The ranks with this rank's number on their nodes, node by node.
    hosts : tuple of str
        Host name of each node.
    rendezvous : Rendezvous
        Gates of this node's ranks.
    board : Board
        Messages between this node's ranks during training.
    halt : StopFlag
        Request to end an epoch early.
    sizes : tuple of int
        Number of ranks of each node.
    pulse : Pulse
        Current activity of each rank of this node.
    patience : DeadlineWaiter
        Waits for other nodes, with a deadline.
    has_one_clock : bool
        True if the clocks of all nodes are one.
    outlives : bool
        True if MPI lets the ranks go on without one that died.
    checks_memory : bool
        True if what its ranks want must fit into the memory of their machine.
    """

    world: MPI.Comm
    comm: MPI.Comm
    link: Link
    node: int
    node_rank: int
    n_nodes: int
    lane: MPI.Comm
    hosts: tuple[str, ...]
    rendezvous: Rendezvous
    board: Board
    halt: StopFlag
    sizes: tuple[int, ...]
    pulse: Pulse
    patience: DeadlineWaiter
    has_one_clock: bool = False
    outlives: bool = False
    checks_memory: bool = True

    @property
    def leaders(self) -> MPI.Comm:
        """On a node's first rank, the first ranks of all nodes; MPI.COMM_NULL elsewhere."""
        return self.lane if self.node_rank == 0 else MPI.COMM_NULL

    @property
    def rank(self) -> int:
        return self.comm.rank

    @property
    def n_ranks(self) -> int:
        return self.comm.size

    @property
    def node_of_rank(self) -> list[int]:
        """Node of each rank."""
        return [node for node, n in enumerate(self.sizes) for _ in range(n)]

    def nodes_of(self, ranks: Sequence[int]) -> list[int]:
        """Return the node of each of ``ranks``."""
        of_all = self.node_of_rank
        return [of_all[rank] for rank in ranks]

    def run_on_root(self, body: Callable[[], T]) -> T:
        """Run ``body`` on rank 0; all return its result (plain values) or raise its UserError. All must call."""
        verdict = _verdict(body) if self.rank == 0 else None
        if self.leaders != MPI.COMM_NULL:
            verdict = self.leaders.bcast(verdict)
        return _open(self.link.tell(verdict))

    def run_on_nodes(self, body: Callable[[], T]) -> T:
        """Run ``body`` on each node's first rank, for that node; all raise the first UserError. All must call."""
        verdict = _verdict(body) if self.node_rank == 0 else {}
        if self.leaders != MPI.COMM_NULL:
            errors = self.leaders.allgather(verdict.get("error"))
            verdict = {"error": self._located(errors, range(self.n_nodes))} if any(errors) else verdict
        return _open(self.link.tell(verdict))

    def run_on_all(self, body: Callable[[], T]) -> T:
        """Run ``body`` on every rank and return its own result; all raise the first UserError. All must call."""
        result, error = None, None
        try:
            result = body()
        except Exception as raised:
            error = sentence(raised)
            if not error:
                raise
        errors = self.allgather(error)
        if any(errors):
            raise AgreedError(self._located(errors, self.node_of_rank))
        return result  # type: ignore[return-value]

    def _located(self, errors: Sequence[str | None], nodes: Sequence[int]) -> str:
        """Return the first of ``errors``, with its host unless there is one node or all entries are the same."""
        first, node = next((error, node) for error, node in zip(errors, nodes, strict=True) if error)
        return first if self.n_nodes == 1 or set(errors) == {first} else f"{first} (on {self.hosts[node]})"

    def gather(self, mine: Any) -> list[Any] | None:
        """Return every rank's object, by rank, on rank 0; None elsewhere. All must call.

        This and the next two are for what precedes and follows training: the watchdog's deadline holds, and ranks wait
        without MPI, which would spin.
        """
        of_node = self.link.gather(pickle.dumps((self.rank, mine)))
        by_node = self.leaders.gather(of_node) if self.leaders != MPI.COMM_NULL else None
        return _by_rank(by_node) if by_node else None

    def allgather(self, mine: Any) -> list[Any]:
        """Return every rank's object, by rank, on all ranks. All must call."""
        of_node = self.link.gather(pickle.dumps((self.rank, mine)))
        by_node = self.leaders.allgather(of_node) if self.leaders != MPI.COMM_NULL else None
        return _by_rank(pickle.loads(self.link.spread(pickle.dumps(by_node))))

    def bcast(self, mine: Any) -> Any:
        """Return rank 0's object on all ranks. All must call."""
        if self.leaders != MPI.COMM_NULL:
            mine = self.leaders.bcast(mine)
        return pickle.loads(self.link.spread(pickle.dumps(mine)))

    def gather_in_time(self, mine: Any) -> list[Any] | None:
        """Return the same as :meth:`gather`. All must call.

        This and the next two are for ranks that train: one that does not come within ``sync.deadline_s`` is lost.
        """
        objects = [pickle.loads(of_rank) for of_rank in self.board.gather(pickle.dumps(mine))]
        if self.leaders == MPI.COMM_NULL:
            return None
        if self.n_nodes == 1:
            return objects
        return self._of_nodes(objects)

    def _of_nodes(self, objects: list[Any]) -> list[Any] | None:
        """Return the objects of all nodes' ranks, by rank, on rank 0; None elsewhere. All leaders must call."""
        self._come()
        by_node = self.patience.gather(self.leaders, pickle.dumps(objects))
        return [of_rank for of_node in by_node for of_rank in pickle.loads(of_node)] if by_node is not None else None

    def allgather_in_time(self, message: bytes) -> list[bytes]:
        """Return every rank's message, bytes, by rank, on all ranks. All must call."""
        messages = self.board.gather_to_all(message)
        if self.n_nodes == 1:
            return messages
        everyones = b""
        if self.leaders != MPI.COMM_NULL:
            everyones = self.patience.bcast(self.leaders, pickle.dumps(self._of_nodes(messages)))
        of_ranks: list[bytes] = pickle.loads(self.board.tell(everyones))
        return of_ranks

    def run_on_root_in_time(self, body: Callable[[], T]) -> T:
        """Do the same as :meth:`run_on_root`. All must call."""
        verdict = _verdict(body) if self.rank == 0 else None
        if self.leaders != MPI.COMM_NULL and self.n_nodes > 1:
            self._come()
            verdict = json.loads(self.patience.bcast(self.leaders, json.dumps(verdict).encode()))
        return _open(json.loads(self.board.tell(json.dumps(verdict).encode())))

    def barrier(self) -> None:
        """Wait until every rank has arrived; within a node without MPI, which would spin. All ranks must call."""
        self.rendezvous.together()
        if self.n_nodes > 1:
            if self.leaders != MPI.COMM_NULL:
                self._come()
            self.rendezvous.together()

    def _come(self) -> None:
        """Wait until the first ranks of all nodes have arrived."""
        if self.n_nodes > 1:
            self.patience.wait(self.leaders.Ibarrier())

    def close(self) -> None:
        """Release this rank's sockets and lock; the cluster must not be used afterwards."""
        self.link.close()
        self.rendezvous.close()

    @cached_property
    def clock_offset_s(self) -> float:
        """Seconds to add to this rank's ``time.perf_counter`` to get rank 0's. All ranks must read it together."""
        if self.n_nodes == 1 or self.has_one_clock:
            return 0.0  # the ranks of a machine share CLOCK_MONOTONIC
        return float(self.link.tell(_offset_s(self.leaders) if self.node_rank == 0 else None))


def _verdict(body: Callable[[], Any]) -> dict[str, Any]:
    try:
        return {"result": body()}
    except Exception as error:
        if not (message := sentence(error)):
            raise
        return {"error": message}


def _open(verdict: dict[str, Any]) -> Any:
    if "error" in verdict:
        raise AgreedError(verdict["error"])
    return verdict["result"]


def _by_rank(by_node: list[list[bytes]]) -> list[Any]:
    """Return the objects of all nodes' ranks, by rank, from what :meth:`Link.gather` has returned on each node."""
    numbered = [pickle.loads(of_rank) for of_node in by_node for of_rank in of_node]
    return [mine for _, mine in sorted(numbered, key=itemgetter(0))]


def _offset_s(comm: MPI.Comm, rounds: int = 16) -> float:
    """Estimate the offset to rank 0's clock, in seconds, from the fastest of ``rounds`` round trips (Cristian 1989)."""
    best_s, offset_s = float("inf"), 0.0
    for peer in range(1, comm.size):
        for _ in range(rounds):
            if comm.rank == peer:
                sent = perf_counter()
                root_time = comm.sendrecv(None, 0, source=0)
                back = perf_counter()
                if back - sent < best_s:
                    best_s, offset_s = back - sent, root_time - (sent + back) / 2
            elif comm.rank == 0:
                comm.recv(source=peer)
                comm.send(perf_counter(), peer)
    return offset_s
