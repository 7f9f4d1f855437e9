"""Ranks of a node in groups, for sync modes in which each group does something by itself."""

from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from psframe.cluster import communicators
from psframe.cluster.cluster import Cluster, join
from psframe.cluster.roles import Team
from psframe.memory.allocator import Apart, Within


@dataclass(frozen=True)
class Group:
    """The ranks that do together what a sync mode does in groups; without groups, those of a node.

    Attributes
    ----------
    cluster : Cluster
        Of these ranks alone; without groups, of all.
    team : Team
        Of these ranks, all of them workers; without groups, of all.
    members : tuple of int
        Their numbers among the workers of the job, if all ranks are workers.
    n_groups : int
    place, n_places : int
        Number of this group on its node, and how many there are.
    leads : bool
        Whether this is the group's first rank.
    leaders : MPI.Comm
        On those: the first ranks of all groups. Elsewhere MPI.COMM_NULL.
    is_stage : bool
        Whether they have a part of the network, other groups others.
    """

    cluster: Cluster
    team: Team
    members: tuple[int, ...]
    n_groups: int
    place: int
    n_places: int
    leads: bool
    leaders: MPI.Comm
    is_stage: bool = False

    def apart(self, allocator: Any) -> Any:
        """Return an allocator whose shared memory is this group's, not the node's."""
        if self.is_stage:
            return Within(allocator)
        return allocator if self.n_places == 1 else Apart(allocator, self.place, self.n_places)


def undivided(cluster: Cluster, team: Team, is_stage: bool = False) -> Group:
    """Return what stands for a group where there are none: ``team`` is of all ranks, or of those of a stage."""
    return Group(cluster, team, (), cluster.n_nodes, 0, 1, cluster.link.leads, cluster.leaders, is_stage)


def divide(cluster: Cluster, size: int | str) -> Group:
    """Return the group of this rank, of ``size`` ranks of its node or one fewer. All ranks must call.

    ``auto``: the ranks of a node; where there is only one, half of them.
    """
    n_here = cluster.sizes[cluster.node]
    if size == "auto":
        n_places = min(2, n_here) if cluster.n_nodes == 1 else 1
    else:
        n_places = -(-n_here // min(int(size), n_here))
    place = cluster.node_rank * n_places // n_here
    comm = communicators.keep(cluster.comm.Split(cluster.node * cluster.n_ranks + place, key=cluster.rank))
    inner = join(comm)
    leaders = communicators.keep(cluster.comm.Split(0 if inner.rank == 0 else MPI.UNDEFINED, key=cluster.rank))
    n_groups = cluster.comm.allreduce(int(inner.rank == 0))
    team = Team(inner.comm, None, inner, -(-n_here // n_places))
    members = tuple(inner.comm.allgather(cluster.rank))
    inner.rendezvous.members = members  # who is lost is named by its number in the job, and told once a node
    inner.rendezvous.told_at = cluster.rendezvous.gates
    return Group(inner, team, members, n_groups, place, n_places, inner.rank == 0, leaders)
