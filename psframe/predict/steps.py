"""What a step takes of a core, whatever else runs on that core meanwhile.

A rank that computes with one thread is timed by the CPU time of that thread: what the kernel gave to other processes
is no part of it. Threads of one rank wait for each other, so that there the clock on the wall counts, of the steps that
were disturbed least.
"""

from collections.abc import Callable, Sequence
from time import perf_counter, process_time, thread_time
from typing import Any

import numpy as np

from psframe.bench.layers import DIRECTIONS
from psframe.bench.stats import spread

SEVERAL = 1.2  # times the CPU time of its first thread: a process in which other threads compute, too
QUARTILE = 0.6745  # standard deviations from the median of normal numbers to a quartile

Clock = Callable[[], float]


def is_alone(step: Callable[[], object], n: int) -> bool:
    """Whether the calling thread computes ``n`` steps by itself, or nearly so."""
    own, whole = thread_time(), process_time()
    for _ in range(n):
        step()
    return process_time() - whole <= SEVERAL * (thread_time() - own)


def least(seconds: Sequence[float], clock: Clock) -> float:
    """Return what is typical of seconds by a clock: the median of CPU time, the lower quartile of the wall's."""
    found = spread(seconds)
    return found["low"] if clock is perf_counter else found["median"]


def figures(ranks: Sequence[Sequence[float]], clock: Clock) -> dict[str, float]:
    """Return the seconds of a step, and the deviation of steps over their median, of the steps of each rank.

    The deviation is that of the faster half: what makes steps much longer now and then is no property of the work.
    """
    found = spread([seconds for of in ranks for seconds in of])
    return {
        "step_s": float(np.mean([least(of, clock) for of in ranks])),
        "deviation": (found["median"] - found["low"]) / QUARTILE / found["median"],
    }


def of_layers(steps: Sequence[Sequence[dict[str, float]]], clock: Clock) -> list[dict[str, float]]:
    """Return each layer's seconds by direction, of those of every step."""
    return [{d: least([s[number][d] for s in steps], clock) for d in DIRECTIONS} for number in range(len(steps[0]))]


def mean(ranks: Sequence[Sequence[dict[str, float]]]) -> list[dict[str, float]]:
    """Return each layer's seconds by direction, means over ranks."""
    return [{d: float(np.mean([of[number][d] for of in ranks])) for d in DIRECTIONS} for number in range(len(ranks[0]))]


def taken(wall_s: float, own_s: float) -> float:
    """Return the share of a rank's time in which it had no core."""
    return max(0.0, 1 - own_s / wall_s)


def timed(step: Callable[[], object], layers: Callable[[], list[Any]], clock: Clock, seconds: float, n: int) -> Any:
    """Take steps for so many seconds, at least ``n`` of them.

    Return the seconds of each by ``clock``, what ``layers`` says after each, and the share of the time that was taken
    from them; the first step does not count.
    """
    steps: list[float] = []
    told: list[list[Any]] = []
    wall_s = own_s = 0.0
    until = perf_counter() + seconds
    while perf_counter() < until or len(steps) < n:
        wall, own, began = perf_counter(), thread_time(), clock()
        step()
        steps.append(clock() - began)
        own_s += thread_time() - own
        wall_s += perf_counter() - wall
        told.append(layers())
    lost = taken(wall_s, own_s) if clock is thread_time else 0.0  # a thread that waits for others has lost nothing
    return steps[1:], told[1:], lost
