"""``local_sgd`` (:class:`LocalSGD`): workers train independently, and average every k steps (Stich 2019)."""

from psframe.config.registry import Count, PositiveInt
from psframe.optim import SGD
from psframe.sync.averaging import Averaging


class LocalSGD(Averaging):
    """``w_k <- update(w_k, g_k)``; every k steps ``w_k <- mean_j w_j``.

    Parameters
    ----------
    every : int
        k.
    post_local : int
        First epochs, with an average after every step (post-local SGD, Lin et al. 2020).
    """

    outer_lr = 1.0

    def __init__(
        self,
        *,
        every: PositiveInt = 8,
        post_local: Count = 0,
    ):
        super().__init__(every)
        self.post_local, self.outer = post_local, SGD(lr=1.0)

    def period(self, step: int) -> int:
        return 1 if self._parts.sampler.epoch < self.post_local else self.every
