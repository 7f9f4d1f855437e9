"""Window of virtual ranks (:class:`VirtualWindow`): what psframe calls of ``MPI.Win``, over memory of one process."""

from collections import defaultdict
from typing import Any

import numpy as np
from mpi4py import MPI

from psframe.virtual.pages import Copies

REQUEST = 64  # bytes that ask another node for some of its memory


class Memories:
    """Memory of each rank of a communicator, flat, and its copies."""

    def __init__(self) -> None:
        self.of: dict[int, np.ndarray] = {}
        self.copies: dict[int, Copies] = defaultdict(Copies)


class VirtualWindow:
    """Memory of all ranks of a communicator, seen from one; an access is one step, and done when it returns.

    Parameters
    ----------
    comm : VirtualComm
    memories : Memories
        The same object on all ranks.
    memory : ndarray
        This rank's.
    """

    def __init__(self, comm: Any, memories: Memories, memory: np.ndarray):
        self._comm, self._ranks, self._memories = comm, comm.ranks, memories
        memories.of[comm.rank] = memory.reshape(-1)

    def Lock_all(self) -> None: ...
    def Unlock_all(self) -> None: ...
    def Free(self) -> None: ...
    def Flush(self, target: int) -> None: ...
    def Sync(self) -> None: ...

    def Fetch_and_op(self, origin: Any, result: Any, target: int, place: int, op: Any) -> None:
        memory = self._fetched(target, 8)
        result[0] = memory[place]
        if op == MPI.SUM:
            memory[place] += origin[0]
            self._ranks.wake()

    def Get(self, out: np.ndarray, target: int, place: int = 0) -> None:
        memory = self._fetched(target, out.nbytes)
        self._memories.copies[target].copy(memory[place : place + len(out)], out)

    def Put(self, values: np.ndarray, target: int, place: int = 0) -> None:
        self._accessed(target, values.nbytes)[place : place + len(values)] = values

    def Get_accumulate(self, origin: Any, out: np.ndarray, target: int, where: Any, op: Any) -> None:
        place, n, _ = where
        out[:] = self._fetched(target, out.nbytes)[place : place + n]

    def Accumulate(self, values: np.ndarray, target: int, place: int, op: Any) -> None:
        memory = self._accessed(target, values.nbytes)
        where = slice(place, place + len(values))
        if op == MPI.SUM:
            memory[where] += values
        else:
            memory[where] = values
        self._ranks.wake()

    def _accessed(self, target: int, n_bytes: int) -> np.ndarray:
        self._ranks.point()
        self._comm.charge(self._comm.rank, target, n_bytes)
        return self._memories.of[target]

    def _fetched(self, target: int, n_bytes: int) -> np.ndarray:
        """Return a rank's memory, from which bytes come back."""
        comm = self._comm
        self._ranks.point()
        if comm.nodes[target] != comm.nodes[comm.rank]:
            comm.charge(comm.rank, target, REQUEST)
        comm.charge(target, comm.rank, n_bytes)
        return self._memories.of[target]
