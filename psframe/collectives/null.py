"""``null``: moves nothing, so that an epoch costs what it costs without any exchange. Its training is no training."""

import numpy as np

from psframe import compiled
from psframe.collectives.base import Base, Segments
from psframe.collectives.traits import Traits


class Null(Base):
    """Each rank that applies updates applies its own gradient; nobody hears of it."""

    traits = Traits(moves_data=False)

    def broadcast(self, params: np.ndarray) -> None:
        pass

    def gather_mean(self, grads: np.ndarray, n_samples: int) -> Segments:
        if self.team.applies:
            yield slice(0, len(grads)), compiled.elementwise.Mean([grads]).over(n_samples)

    allreduce_mean = gather_mean
