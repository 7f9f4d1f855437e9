"""Roles of a job's ranks, servers and workers: by their numbers (:class:`Roles`), and over MPI (:class:`Team`)."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from mpi4py import MPI

from psframe.cluster.cluster import Cluster


@dataclass(frozen=True)
class Roles:
    """Roles of ranks, as far as their numbers tell; workers are numbered in rank order, and so node by node.

    Attributes
    ----------
    sizes : tuple of int
        Ranks of each node.
    server : str or None
        Kind of server: ``dedicated`` (applies updates, computes no gradients), ``colocated`` (does both), or None if
        every rank applies updates.
    n_servers : int
        At most the number of ranks.
    """

    sizes: tuple[int, ...]
    server: str | None
    n_servers: int = 1

    @property
    def n_ranks(self) -> int:
        """Number of ranks."""
        return sum(self.sizes)

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
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
        """Number of workers."""
        return len(self.workers)


@dataclass(frozen=True, kw_only=True)
class Team(Roles):
    """The ranks of a job in their roles, seen from one of them.

    Attributes
    ----------
    comm : MPI.Comm
        All ranks; rank 0 owns the version and the checkpoints.
    cluster : Cluster or None
        Nodes of these ranks; None if not needed.
    largest : int or None
        Workers of the largest of several teams on a node; all of these allocate memory for that number.
    """

    comm: MPI.Comm
    cluster: Cluster | None = None
    largest: int | None = None

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
