"""Roles of a job's ranks (:class:`Team`): servers and workers."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from psframe.cluster.cluster import Cluster
from psframe.cluster.mpi import MPI


@dataclass(frozen=True)
class Team:
    """The ranks of a job in their roles; workers are numbered in rank order, and so node by node.

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
    def servers(self) -> tuple[int, ...]:
        """The servers, in the order of their shares: the first rank of each node, then the second ranks, and so on."""
        if self.server is None:
            return ()
        sizes = self.cluster.sizes if self.cluster else (self.comm.size,)
        firsts = list(accumulate(sizes, initial=0))
        turns = [
            first + turn for turn in range(max(sizes)) for first, n in zip(firsts, sizes, strict=False) if turn < n
        ]
        return tuple(turns[: self.n_servers])

    @cached_property
    def workers(self) -> tuple[int, ...]:
        """The ranks that compute gradients, by worker number."""
        idle = self.servers if self.server == "dedicated" else ()
        return tuple(rank for rank in range(self.comm.size) if rank not in idle)

    @property
    def n_workers(self) -> int:
        return len(self.workers)

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
