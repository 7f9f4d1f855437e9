"""Fault injection (:class:`Slow`, :class:`Crash`, :class:`Flip`), and the end of training at a fault."""

import os
import re
import signal
from collections.abc import Callable

import numpy as np

from psframe.cluster.cluster import AgreedError
from psframe.config.schema import Fault
from psframe.errors import UserError, nearest
from psframe.memory.arena import Arena
from psframe.record.checkpoint import CRASH_POINTS
from psframe.record.clock import CLOCK

FLIP = re.compile(r"(params|state|gradients):(\d{1,9}):(\d{1,15}):(\d{1,13}|nan)")


class Rollback(AgreedError):
    """Parameters are damaged, or a step must not be applied: go back to a checkpoint.

    Every rank raises it after the same step. Uncaught, it ends the run as any other UserError.

    Attributes
    ----------
    ranks : tuple of int
        Ranks at fault, by their numbers in the job; empty if unknown.
    step : int
        Step of the fault; counts from 1 over the run.
    reason : str
    """

    def __init__(self, ranks: tuple[int, ...], step: int, reason: str):
        super().__init__(f"{reason}; continue from the last checkpoint with checkpoint.resume=auto")
        self.ranks, self.step, self.reason = ranks, step, reason


class Slow:
    """Delay of a rank's steps, if the config makes it slow.

    Parameters
    ----------
    fault : Fault
    rank, seed : int
    """

    def __init__(self, fault: Fault, rank: int, seed: int):
        self.fault = fault
        self.applies_updates = fault.slow_rank in ("all", rank) and fault.slow_steps > 0
        self.random = np.random.default_rng((seed, rank))

    def pause(self, step_s: float) -> None:
        """Sleep ``slow_steps`` times ``step_s`` seconds, in the share ``slow_share`` of the steps."""
        if self.applies_updates and self.random.random() < self.fault.slow_share:
            CLOCK.sleep(self.fault.slow_steps * step_s)


class Crash:
    """Kill of this process at a point of writing a checkpoint, as a power failure would.

    Parameters
    ----------
    crash_at : str
        ``none``, or one of ``CRASH_POINTS``; with suffix ``:k``, at its k-th occurrence.
    """

    def __init__(self, crash_at: str):
        match = re.fullmatch(r"([a-z-]+)(?::([1-9][0-9]{0,8}))?", crash_at)
        if crash_at != "none" and (not match or match[1] not in CRASH_POINTS):
            raise UserError(
                f"fault.crash_at must be none or a point of writing a checkpoint, got {crash_at!r}; "
                f"{nearest(crash_at.partition(':')[0], CRASH_POINTS)}; write `:2` behind it for the second time"
            )
        self.point, self.left = (match[1], int(match[2] or 1)) if match else ("none", 0)

    def __call__(self, point: str) -> None:
        """Kill this process if ``point`` is the configured one, at its k-th occurrence."""
        if point == self.point:
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)


class Flip:
    """Flip of one bit in the memory of one rank, once.

    ``fault.flip`` is ``KIND:RANK:STEP:BIT``: it flips a bit of the rank's ``params`` or optimizer ``state`` after that
    step, counted from 1 over the run, or of its ``gradients`` before the step's exchange. Bits count from the lowest
    bit of the vector's first element; ``nan`` sets that element to NaN.

    Raises
    ------
    UserError
        If the text is malformed, the rank does not exist, or the bit is beyond the vector's end.
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
        """Return True if a bit of one of these kinds is flipped in a step, on any rank."""
        return step == self.step and self.kind in kinds

    def apply(self) -> None:
        """Flip the bit if it is this rank's; without optimizer state, do nothing."""
        vectors: dict[str, Callable[[], np.ndarray]] = {
            "params": lambda: self.arena.params,
            "gradients": lambda: self.arena.grads,
            "state": lambda: self.arena.state[0] if len(self.arena.state) else np.empty(0, np.float32),
        }
        vector = vectors[self.kind]()
        if self.mine and len(vector):
            self.step = 0  # a rank may have several turns in a step if batches are drawn
            if self.bit == "nan":
                vector[0] = np.nan
            else:
                vector.view(np.uint32)[int(self.bit) // 32] ^= np.uint32(1 << int(self.bit) % 32)
