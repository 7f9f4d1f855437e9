"""The roles of a job's ranks: who serves, who works."""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from mpi4py import MPI

from psframe.cluster.cluster import Cluster


@dataclass(frozen=True)
class Team:
    """The ranks of a job in their roles; workers are numbered in rank order, so node by node.

    Attributes
    ----------
    comm : MPI.Comm
        All ranks; rank 0 owns version and checkpoints.
    server : str or None
        What a server is: ``dedicated`` (applies updates, computes no gradient), ``colocated`` (does both), or None
        where every rank applies them.
    cluster : Cluster or None
        The nodes that these ranks are on; None where nobody asks for them.
    largest : int or None
        Workers of the largest of several teams on a node, which all take memory as if they had so many.
    n_servers : int
        At most as many as there are ranks.
    """

    comm: MPI.Comm
    server: str | None
    cluster: Cluster | None = None
    largest: int | None = None
    n_servers: int = 1

    @cached_property
    def servers(self) -> tuple[int, ...]:
        """The ranks that serve, in the order of their shares: a node's first rank each, then its second, and so on."""
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
        """The ranks that compute gradients, by worker."""
        idle = self.servers if self.server == "dedicated" else ()
        return tuple(rank for rank in range(self.comm.size) if rank not in idle)

    @property
    def n_workers(self) -> int:
        return len(self.workers)

    @cached_property
    def numbers(self) -> dict[int, int]:
        """The number of each worker, 0 to n_workers - 1, by its rank."""
        return {rank: number for number, rank in enumerate(self.workers)}

    @property
    def worker(self) -> int | None:
        """This worker's number; None on a dedicated server."""
        return self.numbers.get(self.comm.rank)

    @property
    def applies(self) -> bool:
        """Whether this rank applies updates, and so keeps optimizer state."""
        return self.server is None or self.comm.rank in self.servers
