"""Baselines in plain mpi4py and NumPy (:data:`BASELINES`): a step of a parameter server, or of an allreduce.

Each ends when every rank has the new parameters. ``classic`` is the straightforward version: Gather, sum, update
(momentum, Polyak 1964), Bcast. The ``_tuned`` ones allocate no temporary arrays. Rank 0 is a dedicated server in all
but ``allreduce``, where every rank is a worker and applies the update itself.
"""

from collections.abc import Callable

import numpy as np
from mpi4py import MPI

LR, MOMENTUM = 1e-3, 0.9


class Vectors:
    """One rank's float32 vectors (size,); ``received`` is (n_ranks, size) on rank 0 if ``gathers``, else (0, size)."""

    def __init__(self, comm: MPI.Comm, size: int, gathers: bool):
        self.comm, self.n_workers = comm, max(1, comm.size - 1)
        self.params: np.ndarray
        self.velocity: np.ndarray
        self.params, self.grads, self.velocity, self.work = (np.zeros(size, np.float32) for _ in range(4))
        rows = comm.size if gathers and comm.rank == 0 else 0
        self.received = np.zeros((rows, size), np.float32)


def classic(v: Vectors) -> None:
    v.comm.Gather(v.grads, v.received)
    if v.comm.rank == 0:
        v.velocity = MOMENTUM * v.velocity + v.received[1:].sum(axis=0) / v.n_workers
        v.params = v.params - LR * v.velocity
    v.comm.Bcast(v.params)


def classic_tuned(v: Vectors) -> None:
    v.comm.Gather(v.grads, v.received)
    if v.comm.rank == 0:
        np.sum(v.received[1:], axis=0, out=v.work)
        _update(v, v.n_workers)
    v.comm.Bcast(v.params)


def reduce_bcast(v: Vectors) -> None:
    if v.comm.rank:
        v.comm.Reduce(v.grads, None)
    else:
        v.grads[:] = 0
        v.comm.Reduce(v.grads, v.work)
        v.velocity = MOMENTUM * v.velocity + v.work / v.n_workers
        v.params = v.params - LR * v.velocity
    v.comm.Bcast(v.params)


def reduce_bcast_tuned(v: Vectors) -> None:
    if v.comm.rank:
        v.comm.Reduce(v.grads, None)
    else:
        v.work[:] = 0
        v.comm.Reduce(MPI.IN_PLACE, v.work)
        _update(v, v.n_workers)
    v.comm.Bcast(v.params)


def allreduce(v: Vectors) -> None:
    total = np.empty_like(v.grads)
    v.comm.Allreduce(v.grads, total)
    v.velocity = MOMENTUM * v.velocity + total / v.comm.size
    v.params = v.params - LR * v.velocity


def allreduce_tuned(v: Vectors) -> None:
    v.comm.Allreduce(v.grads, v.work)
    _update(v, v.comm.size)


def _update(v: Vectors, n: int) -> None:
    """Apply the sum of ``n`` gradients in ``v.work``, in place."""
    np.divide(v.work, n, out=v.work)
    np.multiply(v.velocity, MOMENTUM, out=v.velocity)
    np.add(v.velocity, v.work, out=v.velocity)
    np.multiply(v.velocity, LR, out=v.work)
    np.subtract(v.params, v.work, out=v.params)


BASELINES: dict[str, Callable[[Vectors], None]] = {
    "classic": classic,
    "classic_tuned": classic_tuned,
    "reduce_bcast": reduce_bcast,
    "reduce_bcast_tuned": reduce_bcast_tuned,
    "allreduce": allreduce,
    "allreduce_tuned": allreduce_tuned,
}
#: psframe is compared with the fastest of these, too
TUNED = ("reduce_bcast_tuned", "allreduce_tuned")
