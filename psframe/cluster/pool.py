"""Ranks of a job, of which some train and the others wait as spares (:class:`Pool`)."""

from collections.abc import Sequence
from time import sleep
from typing import Any

from mpi4py import MPI

from psframe.cluster import communicators
from psframe.cluster.cluster import Cluster, join

CALL = 0x5F02  # MPI tag of rank 0's messages to the other nodes
LOOK_S = 0.02  # seconds between two looks of a node without ranks that train: MPI has no wait that does not spin


class Pool:
    """All ranks of a job, and which of them train: the members.

    Parameters
    ----------
    cluster : Cluster
        All ranks of the job; at first all are members.

    Attributes
    ----------
    members : tuple of int
        Numbers in ``cluster`` of the ranks that train, ascending; rank 0 is always one.
    drained : set of int
        Nodes whose ranks do not come back.
    """

    def __init__(self, cluster: Cluster):
        self.cluster, self.members = cluster, tuple(range(cluster.n_ranks))
        self.drained: set[int] = set()
        self.n_kept = communicators.n_kept()

    @property
    def has_spares(self) -> bool:
        return len(self.members) < self.cluster.n_ranks

    @property
    def node_of_rank(self) -> list[int]:
        """Node of each rank of the job."""
        return [node for node, n in enumerate(self.cluster.sizes) for _ in range(n)]

    def sizes(self, members: Sequence[int]) -> tuple[int, ...]:
        """Return the number of ``members`` on each node that has any."""
        nodes = [self.node_of_rank[member] for member in members]
        return tuple(nodes.count(node) for node in sorted(set(nodes)))

    def chosen(self, n: int | None, drain: Sequence[int] = ()) -> tuple[int, ...]:
        """Return the members that make ``n`` of the present ones: those with the lowest numbers stay, or come first.

        Ranks on nodes of ``drain``, and on those drained before, are no members; ``n`` None: all others stay.
        """
        away = self.drained.union(drain)
        fit = [rank for rank in range(self.cluster.n_ranks) if self.node_of_rank[rank] not in away]
        present = [rank for rank in fit if rank in self.members]
        spares = [rank for rank in fit if rank not in self.members]
        return tuple(sorted([*present, *spares][: len(present) if n is None else n]))

    def hear(self, message: Any = None) -> Any:
        """Return rank 0's ``message`` (plain values) on every rank. All ranks of the job must call: spares wait here.

        Raises LeaderEnded or PeerLost if a rank of this node has ended.
        """
        cluster = self.cluster
        if cluster.leaders != MPI.COMM_NULL and cluster.rank == 0:
            for node in range(1, cluster.n_nodes):
                cluster.leaders.send(message, node, CALL)
        elif cluster.leaders != MPI.COMM_NULL:
            while not cluster.leaders.Iprobe(0, CALL):
                sleep(LOOK_S)
            message = cluster.leaders.recv(source=0, tag=CALL)
        return cluster.link.tell(message)

    def divide(self, members: Sequence[int]) -> Cluster | None:
        """Return the cluster of the new members, on these, and None elsewhere. All ranks of the job must call.

        What the members before have made with MPI since the pool was made is freed.
        """
        communicators.free_after(self.n_kept)
        is_member = self.cluster.rank in members
        comm = self.cluster.comm.Split(0 if is_member else MPI.UNDEFINED, key=self.cluster.rank)
        self.members = tuple(members)
        if not is_member:
            return None
        active = join(comm)
        # a lost rank is named by its number in the job
        active.rendezvous.members = tuple(self.members[member] for member in active.rendezvous.members)
        return active
