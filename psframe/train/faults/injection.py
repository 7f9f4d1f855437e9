"""Faults on purpose, and what ends training at a fault."""

import os
import re
import signal
import time
from collections.abc import Callable

import numpy as np

from psframe.cluster.cluster import AgreedError
from psframe.config.schema import Fault
from psframe.errors import UserError, nearest
from psframe.memory.arena import Arena
from psframe.record.checkpoint import CRASH_POINTS

FLIP = re.compile(r"(params|state|gradients):(\d{1,9}):(\d{1,15}):(\d{1,13}|nan)")


class Rollback(AgreedError):
    """The parameters are not to be trusted, or a step is not to be taken: go back to a checkpoint.

    Every rank raises it after the same step. Who does not catch it leaves as from any other UserError.

    Attributes
    ----------
    ranks : tuple of int
        Whose fault it was, by their numbers in the job; empty where nobody can be named.
    step : int
        Counts from 1 over the whole run.
    reason : str
    """

    def __init__(self, ranks: tuple[int, ...], step: int, reason: str):
        super().__init__(f"{reason}; continue from the last checkpoint with checkpoint.resume=auto")
        self.ranks, self.step, self.reason = ranks, step, reason


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


class Flip:
    """Turns over one bit in the memory of one rank, once.

    ``fault.flip`` is ``KIND:RANK:STEP:BIT``: after that step, counted from 1 over the run, a bit of the rank's
    ``params`` or optimizer ``state``; or, before the exchange of that step, of its ``gradients``. Bits are counted from
    the lowest one of the vector's first number; ``nan`` for one makes that number not finite.

    Raises
    ------
    UserError
        Another text, a rank that is not there, or a bit behind the vector's end.
    """

    def __init__(self, fault: Fault, rank: int, n_ranks: int, arena: Arena):
        self.step, self.kind, self.arena = 0, "", arena
        if fault.flip == "none":
            return
        match = FLIP.fullmatch(fault.flip)
        n_bits = 32 * arena.layout.size
        if not match or int(match[2]) >= n_ranks or (match[4] != "nan" and int(match[4]) >= n_bits):
            raise UserError(
                f"fault.flip must be KIND:RANK:STEP:BIT with params, state or gradients, one of {n_ranks} rank(s) and "
                f"one of {n_bits} bits or nan, got {fault.flip!r}; write, say, params:0:12:30"
            )
        self.kind, self.step, self.bit = match[1], int(match[3]), match[4]
        self.mine = rank == int(match[2])

    def at(self, *kinds: str, step: int) -> bool:
        """Whether one of these is turned over in a step, on some rank."""
        return step == self.step and self.kind in kinds

    def apply(self) -> None:
        """Turn it over, if it is this rank's; where that keeps no state, there is nothing to turn over."""
        vectors: dict[str, Callable[[], np.ndarray]] = {
            "params": lambda: self.arena.params,
            "gradients": lambda: self.arena.grads,
            "state": lambda: self.arena.state[0] if len(self.arena.state) else np.empty(0, np.float32),
        }
        vector = vectors[self.kind]()
        if self.mine and len(vector):
            self.step = 0  # where batches are drawn, a rank may have several of a step
            if self.bit == "nan":
                vector[0] = np.nan
            else:
                vector.view(np.uint32)[int(self.bit) // 32] ^= np.uint32(1 << int(self.bit) % 32)
