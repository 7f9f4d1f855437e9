"""``object``: mpi4py's lower-case calls, which pickle (Woo et al. 2020's "Python object"): the baseline to beat."""

import numpy as np
from mpi4py import MPI

from psframe import compiled
from psframe.cluster import Team
from psframe.collectives.base import Segments, cut
from psframe.memory.allocator import Allocator


class Object:
    """bcast and gather around rank 0, or allreduce, of whole pickled arrays."""

    def __init__(self, team: Team, size: int, allocator: Allocator, reproducible: str):
        self.team, self.comm, self.size = team, team.comm, size
        self.canonical = reproducible != "none"
        self.bytes_moved = 0
        self.overhead_bytes = len(MPI.pickle.dumps(np.zeros(0, np.float32)))  # of a pickle beside the numbers

    def broadcast(self, params: np.ndarray) -> None:
        arrived = self.comm.bcast(params if self.comm.rank == 0 else None)
        if self.comm.rank:
            params[:] = arrived
            self.bytes_moved += params.nbytes + self.overhead_bytes

    def gather_mean(self, grads: np.ndarray, n_samples: int) -> Segments:
        rows = self.comm.gather(grads if self.team.worker is not None else None)
        if rows is None:
            return
        self.bytes_moved += (self.comm.size - 1) * (grads.nbytes + self.overhead_bytes)
        compiled.elementwise.Mean([row for row in rows if row is not None], grads)(n_samples)
        yield slice(0, self.size), grads

    def allreduce_mean(self, grads: np.ndarray, n_samples: int) -> Segments:
        n, rank = self.comm.size, self.comm.rank
        if self.canonical:
            mine = cut(self.size, n, rank)
            pieces = self.comm.alltoall([grads[cut(self.size, n, worker)] for worker in range(n)])
            compiled.elementwise.Mean(pieces, grads[mine])(n_samples)
            for worker, mean in enumerate(self.comm.allgather(grads[mine])):
                grads[cut(self.size, n, worker)] = mean
        else:
            compiled.elementwise.Mean([self.comm.allreduce(grads)], grads)(n_samples)
        self.bytes_moved += 2 * (grads.nbytes * (n - 1) // n + (n - 1) * self.overhead_bytes)
        yield slice(0, self.size), grads
