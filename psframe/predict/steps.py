"""Time of a step on a core, without other load on that core (:func:`timed`).

A rank that computes with one thread is timed by the CPU time of that thread, which excludes the time of other
processes. Threads of one rank wait for each other, so that there the wall clock counts, of the least disturbed steps.
"""

from collections.abc import Callable, Sequence
from time import perf_counter, process_time, thread_time
from typing import Any

import numpy as np

from psframe.bench.layers import DIRECTIONS
from psframe.record.spread import spread

SEVERAL = 1.2  # CPU time of a process over its first thread's, beyond which other threads compute, too
QUARTILE = 0.6745  # standard deviations between the median and a quartile of normal numbers

Clock = Callable[[], float]


def is_alone(step: Callable[[], object], n: int) -> bool:
    """True if the calling thread computes ``n`` steps by itself, or nearly so."""
    thread_began, process_began = thread_time(), process_time()
    for _ in range(n):
        step()
    return process_time() - process_began <= SEVERAL * (thread_time() - thread_began)


def least(seconds: Sequence[float], clock: Clock) -> float:
    """Return the typical seconds by a clock: the median of CPU times, the lower quartile of wall times."""
    quartiles = spread(seconds)
    return quartiles["low"] if clock is perf_counter else quartiles["median"]


def figures(ranks: Sequence[Sequence[float]], clock: Clock) -> dict[str, float]:
    """Return the seconds of a step, and the deviation of steps over their median, from the steps of each rank.

    The deviation is that of the faster half: occasional much longer steps are no property of the work.
    """
    quartiles = spread([seconds for steps in ranks for seconds in steps])
    return {
        "step_s": float(np.mean([least(steps, clock) for steps in ranks])),
        "deviation": (quartiles["median"] - quartiles["low"]) / QUARTILE / quartiles["median"],
    }


def of_layers(steps: Sequence[Sequence[dict[str, float]]], clock: Clock) -> list[dict[str, float]]:
    """Return each layer's typical seconds by direction, from those of every step."""
    return [{d: least([s[number][d] for s in steps], clock) for d in DIRECTIONS} for number in range(len(steps[0]))]


def mean(ranks: Sequence[Sequence[dict[str, float]]]) -> list[dict[str, float]]:
    """Return each layer's seconds by direction, means over ranks."""
    return [
        {d: float(np.mean([layers[number][d] for layers in ranks])) for d in DIRECTIONS}
        for number in range(len(ranks[0]))
    ]


def taken(wall_s: float, own_s: float) -> float:
    """Return the share of a rank's time in which it had no core."""
    return max(0.0, 1 - own_s / wall_s)


def timed(step: Callable[[], object], layers: Callable[[], list[Any]], clock: Clock, seconds: float, n: int) -> Any:
    """Run steps for ``seconds``, at least ``n`` of them.

    Return the seconds of each by ``clock``, the result of ``layers`` after each, and the share of the time in which
    they had no core; the first step is not counted.
    """
    steps: list[float] = []
    layer_results: list[list[Any]] = []
    wall_s = own_s = 0.0
    until = perf_counter() + seconds
    while perf_counter() < until or len(steps) < n:
        wall_began, own_began, began = perf_counter(), thread_time(), clock()
        step()
        steps.append(clock() - began)
        own_s += thread_time() - own_began
        wall_s += perf_counter() - wall_began
        layer_results.append(layers())
    lost = taken(wall_s, own_s) if clock is thread_time else 0.0  # a thread that waits for others has lost nothing
    return steps[1:], layer_results[1:], lost
