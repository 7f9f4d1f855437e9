"""Comparison of parameter replicas by checksum (:class:`Replicas`), and repair from the majority."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from mpi4py import MPI

from psframe import compiled
from psframe.cluster.cluster import Cluster
from psframe.cluster.roles import Team
from psframe.memory.arena import Arena


class Replicas:
    """Replicas of the parameters, by rank or by node, and of the optimizer state if all have it.

    Parameters
    ----------
    cluster : Cluster
        All ranks.
    """

    def __init__(self, cluster: Cluster, team: Team, arena: Arena):
        self.cluster, self.arena = cluster, arena
        self.by_node = arena.shared
        self.comm = cluster.leaders if self.by_node else cluster.comm
        self.n = cluster.n_nodes if self.by_node else cluster.n_ranks
        with_state = self.by_node or team.server is None
        self.receives = team.server is not None and not self.by_node
        self.rows = [self._params, *([lambda: list(self.arena.state)] if with_state else [])]

    def check(self) -> list[int]:
        """Repair parameters and state that differ, and return their ranks. All ranks must call.

        If a node's ranks share them, its first rank stands for the node. The values of more than one half are correct;
        without such a majority, those of rank 0.
        """
        if self.n < 2:
            return []
        damaged = self._repaired() if self.comm != MPI.COMM_NULL else []
        if self.by_node:
            message = self.cluster.board.tell(np.array(damaged, np.int64).tobytes())
            damaged = np.frombuffer(message, np.int64).tolist()
            firsts = np.cumsum([0, *self.cluster.sizes]).tolist()
            return [firsts[node] for node in damaged]
        return damaged

    def is_mine(self, damaged: Sequence[int]) -> bool:
        """Return True if this rank has computed with the repaired values."""
        own_index = sum(self.cluster.sizes[: self.cluster.node]) if self.by_node else self.cluster.rank
        return own_index in damaged

    def _params(self) -> list[np.ndarray]:
        return [self.arena.published if self.receives else self.arena.params]

    def _repaired(self) -> list[int]:
        vectors = [rows() for rows in self.rows]
        own_sums = np.array([_checksum(of_kind) for of_kind in vectors], np.uint64)
        all_sums = np.empty((self.n, len(own_sums)), np.uint64)
        self.comm.Allgather(own_sums, all_sums)
        damaged: set[int] = set()
        for of_kind, sums in zip(vectors, all_sums.T.tolist(), strict=True):
            right = _right(sums)
            wrong = [rank for rank, value in enumerate(sums) if value != sums[right]]
            for vector in of_kind if wrong else ():
                self.comm.Bcast(vector, right)
            damaged.update(wrong)
        if damaged and not self.receives:
            self.arena.refresh_bf16()
        return sorted(damaged)


def _checksum(vectors: Sequence[np.ndarray]) -> int:
    return sum((2 * i + 1) * compiled.elementwise.checksum(vector) for i, vector in enumerate(vectors)) % (1 << 64)


def _right(sums: Sequence[int]) -> int:
    """Return the first index of the value that more than one half have; 0 if none does."""
    value, count = Counter(sums).most_common(1)[0]
    return sums.index(value) if 2 * count > len(sums) else 0
