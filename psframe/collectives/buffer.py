"""``buffer``: MPI's upper-case calls, straight from and into NumPy arrays (Woo et al. 2020's "Python buffer")."""

from functools import cached_property

import numpy as np
from mpi4py import MPI

from psframe import compiled
from psframe.cluster import Team
from psframe.collectives.base import Segments, cut
from psframe.memory.allocator import Allocator


class Buffer:
    """Bcast and Gatherv around rank 0, or Allreduce."""

    def __init__(self, team: Team, size: int, allocator: Allocator, reproducible: str):
        self.team, self.comm, self.size, self.allocator = team, team.comm, size, allocator
        self.canonical = reproducible != "none"
        self.bytes_moved = 0
        if team.server:
            self.received = self._receive(team.comm.size - 1 if team.comm.rank == 0 else 0)
        elif self.canonical:
            _ = self.pieces

    def _receive(self, rows: int) -> np.ndarray:
        return self.allocator.zeros((rows, self.size), np.float32, "exchange")

    def broadcast(self, params: np.ndarray) -> None:
        self.comm.Bcast(params)
        if self.comm.rank:
            self.bytes_moved += params.nbytes

    def gather_mean(self, grads: np.ndarray, n_samples: int) -> Segments:
        n = self.comm.size
        if self.comm.rank:
            self.comm.Gatherv(grads, None)
            return
        # rank 0 sends nothing to itself: a colocated server's own sum is read where it lies
        counts = [0] + [self.size] * (n - 1)
        self.comm.Gatherv([grads, 0, MPI.FLOAT], [self.received, counts, MPI.FLOAT])
        self.bytes_moved += self.received.nbytes
        own = [grads] if self.team.server == "colocated" else []
        compiled.elementwise.Mean([*own, *self.received], grads)(n_samples)
        yield slice(0, self.size), grads

    @cached_property
    def pieces(self) -> np.ndarray:
        """Where every worker's part of this worker's segment arrives, (n_workers, its length)."""
        mine = cut(self.size, self.comm.size, self.comm.rank)
        return self.allocator.zeros((self.comm.size, mine.stop - mine.start), np.float32, "exchange")

    def allreduce_mean(self, grads: np.ndarray, n_samples: int) -> Segments:
        if self.canonical:
            self._reduce_scatter(grads, n_samples)
        else:
            self.comm.Allreduce(MPI.IN_PLACE, grads)
            compiled.elementwise.Mean([grads], grads)(n_samples)
        self.bytes_moved += 2 * grads.nbytes * (self.comm.size - 1) // self.comm.size
        yield slice(0, self.size), grads

    def _reduce_scatter(self, grads: np.ndarray, n_samples: int) -> None:
        """Every worker sums one segment in the canonical order: W parts of S / W arrive, never W whole vectors."""
        n, rank = self.comm.size, self.comm.rank
        parts = [cut(self.size, n, worker) for worker in range(n)]
        counts = [part.stop - part.start for part in parts]
        starts = [part.start for part in parts]
        self.comm.Alltoallv([grads, counts, starts, MPI.FLOAT], [self.pieces, [counts[rank]] * n, None, MPI.FLOAT])
        compiled.elementwise.Mean(list(self.pieces), grads[parts[rank]])(n_samples)
        self.comm.Allgatherv(MPI.IN_PLACE, [grads, counts, starts, MPI.FLOAT])
