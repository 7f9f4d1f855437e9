"""``object`` (:class:`Object`): mpi4py's pickling lower-case calls (Woo et al. 2020's "Python object"), a baseline."""

from typing import Any

import numpy as np
from mpi4py import MPI

from psframe import compiled
from psframe.cluster.roles import Team
from psframe.collectives.base import BaseCollective, Segments, cut
from psframe.collectives.carriers import Pickles
from psframe.collectives.compression import Compressed
from psframe.collectives.traits import Traits
from psframe.memory.allocator import Allocator


class Object(BaseCollective):
    """bcast and gather around rank 0, or allreduce, of complete pickled arrays.

    Parameters
    ----------
    compression : str or mapping
        See :mod:`psframe.collectives.compression`.
    """

    traits = Traits(supports_tree_sum=True, broadcasts_any_size=True, keeps_tensors=True)

    def __init__(
        self,
        team: Team,
        size: int,
        allocator: Allocator,
        reproducible: str,
        *,
        compression: str | dict[str, Any] = "none",
    ):
        super().__init__(team, size, allocator, reproducible)
        self.compression = compression
        self.pieces: list[np.ndarray] = []  # this rank's segment, from all workers
        self.overhead_bytes = len(MPI.pickle.dumps(np.zeros(0, np.float32)))  # of a pickle, besides the numbers

    def encoded(self) -> BaseCollective:
        return self if self.compression == "none" else Compressed(self, self.compression, Pickles(self._comm))

    def broadcast(self, params: np.ndarray) -> None:
        arrived = self._comm.bcast(params if self._comm.rank == 0 else None)
        if self._comm.rank:
            params[:] = arrived
        self.traffic.broadcast(params.nbytes + self.overhead_bytes, self._comm.size, self._comm.rank == 0)

    def gather_mean(self, grads: np.ndarray, divisor: int) -> Segments:
        rows = self._comm.gather(grads if self._team.worker is not None else None)
        n_bytes = grads.nbytes + self.overhead_bytes
        if rows is None:
            self.traffic.send(n_bytes)
            return
        self.traffic.receive((self._comm.size - 1) * n_bytes)
        mean = self.mean_of([row for row in rows if row is not None])
        yield slice(0, self._size), mean.over(divisor)

    def nonfinite_workers(self, grads: np.ndarray) -> list[int]:
        if self._team.server or not self._canonical:
            return super().nonfinite_workers(grads)
        return [worker for worker, piece in enumerate(self.pieces) if not compiled.elementwise.is_finite(piece)]

    def allreduce_mean(self, grads: np.ndarray, divisor: int) -> Segments:
        n, rank = self._comm.size, self._comm.rank
        if self._canonical:
            segment = cut(self._size, n, rank)
            self.pieces = self._comm.alltoall([grads[cut(self._size, n, worker)] for worker in range(n)])
            self.mean_of(self.pieces).over(divisor).into(grads[segment])
            self.traffic.sum(grads[segment].nbytes, n)
            for worker, mean in enumerate(self._comm.allgather(grads[segment])):
                grads[cut(self._size, n, worker)] = mean
            mean = grads
        else:
            mean = compiled.elementwise.Mean([self._comm.allreduce(grads)]).over(divisor)
        n_bytes = 2 * (grads.nbytes * (n - 1) // n + (n - 1) * self.overhead_bytes)
        self.traffic.send(n_bytes)
        self.traffic.receive(n_bytes)
        yield slice(0, self._size), mean
