"""Parameters that the test set is evaluated with: those of the last step (:class:`Current`), or their average."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from psframe import compiled
from psframe.cluster.cluster import Cluster
from psframe.memory.allocator import Allocator, shared_block
from psframe.memory.arena import Arena
from psframe.nn.network import Network


class Current:
    """The parameters that are trained, as they are."""

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Let this rank's network read these parameters meanwhile. All ranks must call, once none of them trains."""
        yield


class Averaged(Current):
    """Average of the parameters, which rank 0 keeps: each node has a copy for its ranks, in shared memory.

    All ranks must construct it.
    """

    def __init__(self, cluster: Cluster, network: Network, arena: Arena, allocator: Allocator):
        self.cluster, self.network, self.arena = cluster, network, arena
        self.vector = self._shared(allocator, "float32")
        # what layers read, where that is bfloat16
        self.read = self.vector if network.dtype == "float32" else self._shared(allocator, network.dtype)
        self.views = network.reader.by_layer(arena.views(self.read))

    def _shared(self, allocator: Allocator, dtype: str) -> np.ndarray:
        n = self.arena.layout.size
        block = shared_block(allocator, n * np.dtype(dtype).itemsize, "parameters", self.cluster.link.leads)
        return block.view(dtype)[:n]

    @contextmanager
    def reading(self) -> Iterator[None]:
        cluster = self.cluster
        if cluster.rank == 0:
            self.vector[:] = self.arena.state[-1]
        if cluster.node_rank == 0:
            if cluster.n_nodes > 1:
                cluster.patience.wait(cluster.leaders.Ibcast(self.vector))
            if self.read is not self.vector:
                compiled.elementwise.narrow(self.vector, self.read)
        cluster.rendezvous.together()
        with self.network.reader.reading(self.views):
            yield
