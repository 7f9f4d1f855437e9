"""The roles of a job's ranks: who serves, who works."""

from dataclasses import dataclass

from mpi4py import MPI

from psframe.cluster import Cluster


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
    cluster : Cluster or None
        The nodes that these ranks are on; None where nobody asks for them.
    largest : int or None
        Workers of the largest of several teams on a node, which all take memory as if they had so many.
    """

    comm: MPI.Comm
    server: str | None
    cluster: Cluster | None = None
    largest: int | None = None

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
