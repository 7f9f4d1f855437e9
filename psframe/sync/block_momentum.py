"""``block_momentum`` (:class:`BlockMomentum`): averages with momentum, as BMUF (Chen and Huo 2016)."""

from typing import Annotated, Literal

import msgspec
import numpy as np

from psframe.config.registry import Positive, PositiveInt
from psframe.memory.arena import Arena
from psframe.optim import SGD
from psframe.sync.averaging import Averaging
from psframe.sync.base import Parts


class BlockMomentum(Averaging):
    """After a block of local steps ``D <- eta D + zeta (mean_k w_k - w_0)`` and ``w <- w + D``.

    Parameters
    ----------
    every : int
        Steps of a block.
    momentum : float or 'auto'
        eta; ``auto``: 1 - 1 / W.
    block_lr : float
        zeta.
    nesterov : bool
        True to begin the next block at ``w_0 = w + eta D`` instead of w.
    """

    n_outer = 1

    def __init__(
        self,
        *,
        every: PositiveInt = 16,
        momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] | Literal["auto"] = "auto",
        block_lr: Positive = 1.0,
        nesterov: bool = False,
    ):
        super().__init__(every)
        self.momentum, self.outer_lr, self.nesterov = momentum, block_lr, nesterov

    def _allocate(self, parts: Parts) -> Arena:
        arena = super()._allocate(parts)
        self.eta = 1 - 1 / self.n_workers if self.momentum == "auto" else self.momentum
        self.outer = SGD(lr=self.outer_lr, momentum=self.eta)  # D is -zeta times its velocity
        self.start = parts.allocator.zeros(parts.layout.size if self.nesterov else 0, np.float32, "exchange")
        return arena

    def begin_local_steps(self) -> None:
        if self.nesterov:
            np.multiply(self.global_arena.state[0], np.float32(-self.eta * self.outer_lr), out=self.start)
            self.start += self.global_arena.params
            self._arena.params[:] = self.start
        else:
            super().begin_local_steps()

    def local_start(self) -> np.ndarray:
        return self.start if self.nesterov else self.global_arena.params
