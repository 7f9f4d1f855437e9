"""Faults on purpose: a rank, or any, that is slow, to see what a sync mode makes of it."""

import time

import numpy as np

from psframe.config import Fault


class Slow:
    """Sleeps after steps of a rank, if it is one that the config makes slow.

    Parameters
    ----------
    fault : Fault
    rank, seed : int
    """

    def __init__(self, fault: Fault, rank: int, seed: int):
        self.fault = fault
        self.applies = fault.slow_rank in ("all", rank) and fault.slow_steps > 0
        self.random = np.random.default_rng((seed, rank))

    def pause(self, step_s: float) -> None:
        """Sleep ``slow_steps`` times the seconds that a step has taken, in a share of the steps."""
        if self.applies and self.random.random() < self.fault.slow_share:
            time.sleep(self.fault.slow_steps * step_s)
