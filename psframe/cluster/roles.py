"""Roles of a job's ranks: servers and workers, by their numbers (:class:`Roles`) or over MPI (:class:`Team`)."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from psframe.cluster.cluster import Cluster
from psframe.cluster.mpi import MPI


@dataclass(frozen=True)
class Roles:
    """Roles that follow from the numbers of ranks alone; workers are numbered in rank order, and so node by node.

    Attributes
    ----------
    sizes : tuple of int
        Ranks of each node.
    server : str or None
        As in :class:`Team`.
    n_servers : int
        At most the number of ranks.
    """

    sizes: tuple[int, ...]
    server: str | None
    n_servers: int = 1

    @property
    def n_ranks(self) -> int:
        return sum(self.sizes)

    @property
    def n_nodes(self) -> int:
        return len(self.sizes)

    @cached_property
    def servers(self) -> tuple[int, ...]:
        """The servers, in the order of their shares: the first rank of each node, then the second ranks, and so on."""
        if self.server is None:
            return ()
        firsts = list(accumulate(self.sizes, initial=0))
        turns = [
            first + turn
            for turn in range(max(self.sizes))
            for first, n in zip(firsts, self.sizes, strict=False)
            if turn < n
        ]
        return tuple(turns[: self.n_servers])

    @cached_property
    def workers(self) -> tuple[int, ...]:
        """The ranks that compute gradients, by worker number."""
        idle = self.servers if self.server == "dedicated" else ()
        return tuple(rank for rank in range(self.n_ranks) if rank not in idle)

    @property
    def n_workers(self) -> int:
        return len(self.workers)


@dataclass(frozen=True)
class Team:
    """The ranks of a job in their roles.

    Attributes
    ----------
    comm : MPI.Comm
        All ranks; rank 0 owns the version and the checkpoints.
    server : str or None
        Kind of server: ``dedicated`` (applies updates, computes no gradients), ``colocated`` (does both), or None if
        every rank applies updates.
    cluster : Cluster or None
        Nodes of these ranks; None if not needed.
    largest : int or None
        Workers of the largest of several teams on a node; all of these allocate memory for that number.
    n_servers : int
        At most the number of ranks.
    """

    comm: "MPI.Comm"
    server: str | None
    cluster: Cluster | None = None
    largest: int | None = None
    n_servers: int = 1

    @cached_property
    def roles(self) -> Roles:
        """The roles by number."""
        sizes = tuple(self.cluster.sizes) if self.cluster else (self.comm.size,)
        return Roles(sizes, self.server, self.n_servers)

    @property
    def servers(self) -> tuple[int, ...]:
        """The servers; see :attr:`Roles.servers`."""
        return self.roles.servers

    @property
    def workers(self) -> tuple[int, ...]:
        """The ranks that compute gradients, by worker number."""
        return self.roles.workers

    @property
    def n_workers(self) -> int:
        return self.roles.n_workers

    @cached_property
    def worker_of_rank(self) -> dict[int, int]:
        """The number of each worker, 0 to n_workers - 1, by its rank."""
        return {rank: number for number, rank in enumerate(self.workers)}

    @property
    def worker(self) -> int | None:
        """Number of this worker; None on a dedicated server."""
        return self.worker_of_rank.get(self.comm.rank)

    @property
    def applies_updates(self) -> bool:
        """True if this rank applies updates, and so keeps optimizer state."""
        return self.server is None or self.comm.rank in self.servers
