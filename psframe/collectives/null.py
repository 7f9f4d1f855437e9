"""``null``: moves nothing, so that an epoch costs what it costs without any exchange. Its training is no training."""

import numpy as np

from psframe import compiled
from psframe.cluster import Team
from psframe.collectives.base import Segments
from psframe.memory.allocator import Allocator


class Null:
    """Each rank that applies updates applies its own gradient; nobody hears of it."""

    def __init__(self, team: Team, size: int, allocator: Allocator, reproducible: str):
        self.applies = team.applies
        self.bytes_moved = 0

    def broadcast(self, params: np.ndarray) -> None:
        pass

    def gather_mean(self, grads: np.ndarray, n_samples: int) -> Segments:
        if self.applies:
            compiled.elementwise.Mean([grads], grads)(n_samples)
            yield slice(0, len(grads)), grads

    allreduce_mean = gather_mean
