"""Elastic force between parameters and a centre in a store (:class:`Elastic`; Zhang et al. 2015, equations 2, 3)."""

from typing import Annotated

import msgspec
import numpy as np

from psframe.memory.allocator import Allocator
from psframe.sync.stores.base import Store
from psframe.sync.tally import Tally

Force = Annotated[float, msgspec.Meta(gt=0, le=1)]  #: beta; with 1, the centre becomes a mean


class Elastic:
    """``d = alpha (x - c); x <- x - d; c <- c + d``, while other ranks may change ``c`` too.

    Parameters
    ----------
    alpha : float
        beta / p in the paper, for p workers.
    """

    def __init__(self, store: Store, size: int, allocator: Allocator, alpha: float, tally: Tally):
        self.store, self.alpha, self.tally = store, np.float32(alpha), tally
        self.difference = allocator.zeros(size, np.float32, "exchange")
        self.seen = 0  # clock of the centre after the last exchange

    def __call__(self, x: np.ndarray) -> None:
        """Exchange ``x``, float32 (S,), in place."""
        d = self.difference
        self.store.pull(d)
        np.subtract(x, d, out=d)
        d *= self.alpha
        x -= d
        before = self.store.push(d)
        self.tally.exchanged((before - self.seen) % (1 << 32))
        self.seen = before + 1
