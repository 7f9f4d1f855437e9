"""How payloads of bytes go between ranks: in MPI's upper-case calls, or pickled in the lower-case ones."""

from typing import Protocol

import numpy as np
from mpi4py import MPI


class Carrier(Protocol):
    """Moves uint8 arrays; all ranks of the communicator must call."""

    comm: MPI.Comm

    def gather(self, payload: np.ndarray, rows: np.ndarray) -> None:
        """Fill ``rows`` (n - 1, n_bytes) on rank 0 with the payloads (n_bytes,) of the others."""

    def all_to_all(self, out: np.ndarray, counts: list[int], rows: np.ndarray) -> None:
        """Send ``counts[i]`` bytes of ``out`` to rank i, one after the other; receive as many from each in ``rows``."""

    def all_gather(self, every: np.ndarray, counts: list[int]) -> None:
        """Give every rank all parts of ``every``, of which rank i has brought the i-th, of ``counts[i]`` bytes."""


class Buffers:
    """By MPI's upper-case calls."""

    def __init__(self, comm: MPI.Comm):
        self.comm = comm

    def gather(self, payload: np.ndarray, rows: np.ndarray) -> None:
        if self.comm.rank:
            self.comm.Gatherv(payload, None)
        else:
            counts = [0] + [rows.shape[1]] * len(rows)
            self.comm.Gatherv([payload, 0, MPI.BYTE], [rows, counts, MPI.BYTE])

    def all_to_all(self, out: np.ndarray, counts: list[int], rows: np.ndarray) -> None:
        self.comm.Alltoallv([out, counts, MPI.BYTE], [rows, [rows.shape[1]] * len(rows), MPI.BYTE])

    def all_gather(self, every: np.ndarray, counts: list[int]) -> None:
        self.comm.Allgatherv(MPI.IN_PLACE, [every, counts, MPI.BYTE])


class Pickles:
    """By MPI's lower-case calls."""

    def __init__(self, comm: MPI.Comm):
        self.comm = comm

    def gather(self, payload: np.ndarray, rows: np.ndarray) -> None:
        arrived = self.comm.gather(payload if self.comm.rank else None)
        for row, numbers in zip(rows, (arrived or [None])[1:], strict=False):
            row[:] = numbers

    def all_to_all(self, out: np.ndarray, counts: list[int], rows: np.ndarray) -> None:
        ends = np.cumsum(counts)
        for row, numbers in zip(rows, self.comm.alltoall(np.split(out, ends[:-1])), strict=True):
            row[:] = numbers

    def all_gather(self, every: np.ndarray, counts: list[int]) -> None:
        parts = np.split(every, np.cumsum(counts)[:-1])
        for part, numbers in zip(parts, self.comm.allgather(parts[self.comm.rank]), strict=True):
            part[:] = numbers
