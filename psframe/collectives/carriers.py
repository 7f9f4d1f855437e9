"""Carriers of byte payloads between ranks (:class:`Carrier`): mpi4py's upper-case calls, or pickles."""

from functools import cache
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

OFFSETS = 1 << 31  # elements to which the offsets of MPI's calls reach, before MPI 4


class Carrier(Protocol):
    """Exchange of uint8 arrays; all ranks of the communicator must call."""

    comm: MPI.Comm

    def gather(self, payload: np.ndarray, rows: np.ndarray) -> None:
        """Fill ``rows`` (n - 1, n_bytes) on rank 0 with the payloads (n_bytes,) of the other ranks."""

    def all_to_all(self, out: np.ndarray, counts: list[int], rows: np.ndarray) -> None:
        """Send consecutive ``counts[i]`` bytes of ``out`` to rank i; receive row i of ``rows`` from it."""

    def all_gather(self, every: np.ndarray, counts: list[int]) -> None:
        """Gather ``every`` in place on all ranks: rank i contributes the i-th part, of ``counts[i]`` bytes."""


class Buffers:
    """Carrier over mpi4py's upper-case calls."""

    def __init__(self, comm: MPI.Comm):
        self.comm = comm

    def gather(self, payload: np.ndarray, rows: np.ndarray) -> None:
        if self.comm.rank:
            self.comm.Gatherv(payload, None)
        else:
            self.comm.Gatherv([payload, 0, MPI.BYTE], of_rows(rows))

    def all_to_all(self, out: np.ndarray, counts: list[int], rows: np.ndarray) -> None:
        self.comm.Alltoallv([out, counts, MPI.BYTE], [rows, [rows.shape[1]] * len(rows), MPI.BYTE])

    def all_gather(self, every: np.ndarray, counts: list[int]) -> None:
        self.comm.Allgatherv(MPI.IN_PLACE, [every, counts, MPI.BYTE])


class Pickles:
    """Carrier over mpi4py's lower-case calls."""

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


def of_rows(rows: np.ndarray) -> list[Any]:
    """Return the specification with which a root receives rows, uint8 or float32 (n - 1, size), of the other ranks."""
    if rows.size < OFFSETS:
        return [rows, [0] + [rows.shape[1]] * len(rows), None, MPI.BYTE if rows.dtype == np.uint8 else MPI.FLOAT]
    return [rows, [0] + [1] * len(rows), None, _whole(rows.dtype == np.uint8, rows.shape[1])]


@cache
def _whole(is_bytes: bool, size: int) -> MPI.Datatype:
    """Return the type of a row, by which a count is 1."""
    return (MPI.BYTE if is_bytes else MPI.FLOAT).Create_contiguous(size).Commit()
