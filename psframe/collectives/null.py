"""``null`` (:class:`Null`): no exchange, to measure the cost of all else. Its results are not those of training."""

import numpy as np

from psframe import compiled
from psframe.collectives.base import BaseCollective, Segments
from psframe.collectives.traits import Traits


class Null(BaseCollective):
    """Collective without communication: each rank that applies updates applies its own gradient."""

    traits = Traits(moves_data=False, broadcasts_any_size=True, keeps_tensors=True)

    def broadcast(self, params: np.ndarray) -> None:
        pass

    def gather_mean(self, grads: np.ndarray, divisor: int) -> Segments:
        if self._team.applies_updates:
            yield slice(0, len(grads)), compiled.elementwise.Mean([grads]).over(divisor)

    allreduce_mean = gather_mean
