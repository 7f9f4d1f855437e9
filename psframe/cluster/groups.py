"""Groups of a node's ranks (:class:`Group`), for sync modes in which each group acts by itself."""

from dataclasses import dataclass
from typing import Any

from mpi4py import MPI

from psframe.cluster import communicators
from psframe.cluster.cluster import Cluster
from psframe.cluster.joining import join
from psframe.cluster.roles import Team
from psframe.memory.allocator import Apart, Within


@dataclass(frozen=True)
class Group:
    """The ranks that act together in a sync mode with groups; without groups, those of a node.

    Attributes
    ----------
    cluster : Cluster
        Of these ranks alone; without groups, of all ranks.
    team : Team
        Of these ranks, all of them workers; without groups, of all ranks.
    members : tuple of int
        Their numbers among the workers of the job, if all ranks are workers.
    n_groups : int
    place, n_places : int
        Number of this group on its node, and number of groups there.
    leads : bool
        True if this rank is the group's first.
    leaders : MPI.Comm
        On a group's first rank, the first ranks of all groups; MPI.COMM_NULL elsewhere.
    is_stage : bool
        True if these ranks have a part of the network, and other groups have other parts.
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
    """Return the group of a mode without groups: ``team`` has all ranks, or those of a stage."""
    return Group(cluster, team, (), cluster.n_nodes, 0, 1, cluster.link.leads, cluster.leaders, is_stage)


def subcluster(cluster: Cluster, color: int) -> Cluster:
    """Return the ranks with the same ``color``, with gates and communicators of their own. All ranks must call."""
    inner = join(communicators.keep(cluster.comm.Split(color, key=cluster.rank)))
    # a lost rank is named by its number in the job, and reported once per node
    numbers = inner.comm.allgather(cluster.rank)
    inner.rendezvous.members = tuple(numbers[member] for member in inner.rendezvous.members)
    inner.rendezvous.renamed = cluster.rendezvous.renamed
    inner.rendezvous.told_at = cluster.rendezvous.gates
    return inner


def divide(cluster: Cluster, size: int | str) -> Group:
    """Return this rank's group, of at most ``size`` ranks of its node. All ranks must call.

    The groups of a node are of nearly equal size. ``auto``: the ranks of a node; with a single node, half of them.
    """
    n_here = cluster.sizes[cluster.node]
    if size == "auto":
        n_places = min(2, n_here) if cluster.n_nodes == 1 else 1
    else:
        n_places = -(-n_here // min(int(size), n_here))
    place = cluster.node_rank * n_places // n_here
    inner = subcluster(cluster, cluster.node * cluster.n_ranks + place)
    leaders = communicators.keep(cluster.comm.Split(0 if inner.rank == 0 else MPI.UNDEFINED, key=cluster.rank))
    n_groups = cluster.comm.allreduce(int(inner.rank == 0))
    team = Team(inner.sizes, None, comm=inner.comm, cluster=inner, largest=-(-n_here // n_places))
    return Group(inner, team, inner.rendezvous.members, n_groups, place, n_places, inner.rank == 0, leaders)
