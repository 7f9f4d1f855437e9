"""The whole network's parameters and state on rank 0, where stages have parts of it: for records and checkpoints."""

from collections.abc import Iterator, Sequence

import numpy as np

from psframe.arena import Arena, Layout
from psframe.cluster import Cluster
from psframe.memory.allocator import Allocator
from psframe.parallel.grid import Grid


class Whole:
    """Vectors of the whole network on rank 0; elsewhere they are empty.

    Parameters
    ----------
    layout : Layout
        Of the whole network.
    stages : sequence of Layout
    arena : Arena
        Of this rank's stage.
    n_state : int
        Numbers that the optimizer keeps for each parameter.

    Attributes
    ----------
    params : ndarray, shape (layout.size,)
    state : ndarray, shape (n_state, layout.size)
    """

    def __init__(
        self,
        cluster: Cluster,
        grid: Grid,
        layout: Layout,
        stages: Sequence[Layout],
        arena: Arena,
        n_state: int,
        allocator: Allocator,
    ):
        self.comm, self.grid, self.layout, self.stages, self.arena = cluster.comm, grid, layout, stages, arena
        self.leads = cluster.rank == 0
        size = layout.size if self.leads else 0
        self.params = allocator.zeros(size, np.float32, "parameters")
        self.state = allocator.zeros((n_state, size), np.float32, "optimizer")

    def collect(self) -> None:
        """Have the whole on rank 0 as it is now. All ranks must call."""
        if self.grid.replica == 0:
            for whole, own in self._vectors(len(self.state)):
                for stage, there, here in self._tensors():
                    if self.leads and stage:
                        self.comm.Recv(whole[there], stage)
                    elif self.leads:
                        whole[there] = own[here]
                    elif stage == self.grid.stage:
                        self.comm.Send(np.ascontiguousarray(own[here]), 0)

    def hand_out(self, n_rows: int) -> None:
        """Give the first replica's stages what rank 0 has in :attr:`params`, and in so many rows of :attr:`state`.

        All ranks must call.
        """
        if self.grid.replica == 0:
            for whole, own in self._vectors(n_rows):
                for stage, there, here in self._tensors():
                    if self.leads and stage:
                        self.comm.Send(whole[there], stage)
                    elif self.leads:
                        own[here] = whole[there]
                    elif stage == self.grid.stage:
                        self.comm.Recv(own[here], 0)

    def _vectors(self, n_rows: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        yield self.params, self.arena.params
        yield from zip(self.state[:n_rows], self.arena.state[:n_rows], strict=True)

    def _tensors(self) -> Iterator[tuple[int, slice, slice]]:
        """Yield every tensor: its stage, and where it lies in the whole's vectors and in the stage's."""
        for stage, layout in enumerate(self.stages):
            for name, slot in layout.slots.items():
                whole = self.layout.slots[name]
                yield stage, slice(whole.start, whole.stop), slice(slot.start, slot.stop)
