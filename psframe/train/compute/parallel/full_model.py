"""Full parameters and state of a partitioned network on rank 0 (:class:`FullModel`), for records and checkpoints."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from psframe.cluster.cluster import Cluster
from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena, Layout
from psframe.nn.base import Param
from psframe.train.compute.parallel.grid import Grid


class FullModel:
    """Vectors of the full network on rank 0; empty elsewhere.

    Parameters
    ----------
    layout : Layout
        Layout of the full network.
    parts : sequence of mapping of str to Param
        Parameters of each rank of a replica.
    arena : Arena
        Arena of this rank's part.
    n_state : int
        Values of optimizer state per parameter.

    Attributes
    ----------
    params : ndarray of float32, shape (layout.size,)
    state : ndarray of float32, shape (n_state, layout.size)
    stays : bool
        True: these vectors change in :meth:`refresh` and on resume only.
    """

    stays = True

    def __init__(
        self,
        cluster: Cluster,
        grid: Grid,
        layout: Layout,
        parts: Sequence[Mapping[str, Param]],
        arena: Arena,
        n_state: int,
        allocator: Allocator,
    ):
        self.comm, self.grid, self.layout, self.parts, self.arena = cluster.comm, grid, layout, parts, arena
        size = layout.size if cluster.rank == 0 else 0
        self.params = allocator.zeros(size, np.float32, "parameters")
        self.state = allocator.zeros((n_state, size), np.float32, "optimizer")
        for vector in (self.params, *self.state) if size else ():
            layout.name(allocator, vector)

    def refresh(self) -> None:
        """Gather the current parameters and state on rank 0. All ranks must call."""
        for full_vector, own_vector in self._vectors(len(self.state)):
            for rank, name, param in self._tensors():
                if rank % self.grid.n_shards and not param.of:
                    continue  # replicated: the first shard has the same values
                if self.comm.rank:
                    self.comm.Send(np.ascontiguousarray(self._mine(own_vector, name)), 0)
                    continue
                target = self._there(full_vector, name, param)
                if rank:
                    received = np.empty(param.shape, np.float32)
                    self.comm.Recv(received, rank)
                    target[...] = received
                else:
                    target[...] = self._mine(own_vector, name)

    def scatter(self, n_rows: int) -> None:
        """Send rank 0's :attr:`params`, and ``n_rows`` rows of its :attr:`state`, to the first replica's ranks.

        All ranks must call.
        """
        for full_vector, own_vector in self._vectors(n_rows):
            for rank, name, param in self._tensors():
                if self.comm.rank:
                    received = np.empty(param.shape, np.float32)
                    self.comm.Recv(received, 0)
                    self._mine(own_vector, name)[...] = received
                elif rank:
                    self.comm.Send(np.ascontiguousarray(self._there(full_vector, name, param)), rank)
                else:
                    self._mine(own_vector, name)[...] = self._there(full_vector, name, param)

    def _vectors(self, n_rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        if self.grid.replica == 0:
            yield self.params, self.arena.params
            yield from zip(self.state[:n_rows], self.arena.state[:n_rows], strict=True)

    def _tensors(self) -> Iterator[tuple[int, str, Param]]:
        """Yield (rank, name, param) of every tensor on rank 0, of the own tensors on another rank."""
        for rank, part in enumerate(self.parts):
            if self.comm.rank in (0, rank):
                for name, param in part.items():
                    yield rank, name, param

    def _there(self, whole: np.ndarray, name: str, param: Param) -> np.ndarray:
        return param.rows(self.layout.slots[name].view(whole))

    def _mine(self, own: np.ndarray, name: str) -> np.ndarray:
        return self.arena.layout.slots[name].view(own)
