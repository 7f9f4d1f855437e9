"""``allreduce`` (:class:`AllReduce`): no server; all ranks apply the same mean to the same parameters."""

from psframe.sync.base import Mode
from psframe.sync.traits import SYNCHRONOUS


class AllReduce(Mode):
    """``w <- update(w, sum_k g_k / n)`` on every rank."""

    def __init__(self):
        super().__init__(SYNCHRONOUS)

    def step(self, n_samples: int, lr: float, step: int) -> bool:
        for segment, gradient in self._parts.collective.allreduce_mean(self._arena.grads, n_samples):
            self._update(segment, gradient, lr, step)
        if not self._arena.shared:
            self._arena.end_step()
        return True
