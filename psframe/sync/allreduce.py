"""``allreduce`` (:class:`AllReduce`): no server; all ranks apply the same mean to the same parameters."""

from dataclasses import replace

from psframe.cluster.gates import DEADLINE_S, Wait
from psframe.config.registry import Deadline
from psframe.sync.base import Mode
from psframe.sync.traits import SYNCHRONOUS


class AllReduce(Mode):
    """``w <- update(w, sum_k g_k / n)`` on every rank.

    Parameters
    ----------
    wait, deadline_s
        As in :class:`psframe.sync.base.SyncMode`.
    """

    def __init__(self, *, wait: Wait = "auto", deadline_s: Deadline = DEADLINE_S):
        super().__init__(replace(SYNCHRONOUS, wait=wait, deadline_s=deadline_s))

    def step(self, n_samples: int, lr: float, step: int) -> bool:
        for segment, gradient in self._parts.collective.allreduce_mean(self.arena.grads, n_samples):
            self._update(segment, gradient, lr, step)
        if not self.arena.shared:
            self.arena.close()
        return True
