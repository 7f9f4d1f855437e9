"""Faults on purpose: a rank that is slow, to see what a sync mode makes of it, or that ends while it saves a run."""

import os
import re
import signal
import time

import numpy as np

from psframe.config import Fault
from psframe.errors import UserError, nearest
from psframe.record.checkpoint import CRASH_POINTS


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


class Crash:
    """Ends this process, as a machine would that loses its power, at a point of writing a checkpoint.

    Parameters
    ----------
    crash_at : str
        ``none``, or one of ``CRASH_POINTS``; with ``:k`` behind it when it is come to for the k-th time.
    """

    def __init__(self, crash_at: str):
        found = re.fullmatch(r"([a-z-]+)(?::([1-9][0-9]{0,8}))?", crash_at)
        if crash_at != "none" and (not found or found[1] not in CRASH_POINTS):
            raise UserError(
                f"fault.crash_at must be none or a point of writing a checkpoint, got {crash_at!r}; "
                f"{nearest(crash_at.partition(':')[0], CRASH_POINTS)}; write `:2` behind it for the second time"
            )
        self.point, self.left = (found[1], int(found[2] or 1)) if found else ("none", 0)

    def __call__(self, point: str) -> None:
        """End here, if it is the time."""
        if point == self.point:
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)
