"""Cut of a network into stages (:func:`found`), to minimize the time of the slowest stage."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter

import numpy as np

from psframe.errors import UserError
from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena
from psframe.nn import operations
from psframe.nn.base import Pass
from psframe.nn.network import Network
from psframe.nn.timed import Told, time_layers
from psframe.train.compute.parallel.partition import balanced

ENOUGH_S, MOST = 1.0, 6  # total seconds and number of passes at which a measurement stops
MAX_CUTS = 4  # cuts to try
ONE = 0x3F80  # bits of 1 in bfloat16


def check(network: Network, n_stages: int) -> None:
    """Raise UserError if there are more stages than active layers."""
    if n_stages > len(network.active):
        raise UserError(
            f"parallel.pipeline must leave a layer for every stage, got {n_stages} stages for a model of "
            f"{len(network.active)} layer(s) that a cut may pass between; give parallel.pipeline="
            f"{len(network.active)} or less"
            + (", or a torch.nn.Sequential, whose parts are layers" if len(network.active) == 1 else "")
        )


def found(make: Callable[[slice], Network], n_stages: int, n_samples: int, kernels: str) -> list[int]:
    """Return the fastest of up to MAX_CUTS cuts, each balanced by the layer times measured with the previous one.

    The first cut balances FLOPs. A layer's time depends on its stage, whose layers share the caches. Memory is
    allocated for one stage at a time.

    Parameters
    ----------
    make : callable
        ``make(own)`` returns the network, or a stage of it, without memory.
    n_samples : int
        Samples of a micro-batch.

    Raises
    ------
    UserError
        As :func:`check`.
    """
    network = make(slice(None))
    check(network, n_stages)
    cuts = balanced([operations.of_forward(network, index) for index, _ in network.active], n_stages)
    tried: dict[tuple[int, ...], float] = {}
    while tuple(cuts) not in tried and len(tried) < MAX_CUTS:
        stages = [_measured(make(slice(*ends)), n_samples, kernels, ENOUGH_S / n_stages) for ends in pairwise(cuts)]
        tried[tuple(cuts)] = max(map(sum, stages))
        cuts = balanced([seconds for stage in stages for seconds in stage], n_stages)
    return list(min(tried.items(), key=lambda item: item[1])[0])


def _measured(stage: Network, n_samples: int, kernels: str, enough_s: float) -> list[float]:
    """Return the seconds of each layer of a stage, forward plus backward, on one thread; the minimum over passes."""
    allocator = Allocator()
    stage.bind(Arena(stage.layout, 0, allocator), n_samples, allocator, kernels, adds=True)
    seconds: Counter[int] = Counter()

    def listener(index: int, layer: object) -> Told:
        return lambda direction, began: seconds.update({index: perf_counter() - began})

    time_layers(stage, listener)
    x = np.zeros((n_samples, *stage.shape_before(stage.own.start)), stage.dtype if stage.own.start else np.float32)
    is_last = stage.own.stop == len(stage.active)
    dy = np.zeros((n_samples, *stage.shape_before(stage.own.stop)), np.float32 if is_last else stage.dtype)
    dy[:] = 1 if dy.dtype == np.float32 else ONE
    state, passes = Pass(True, 0, 0, np.arange(n_samples)), list[list[float]]()
    while len(passes) < 2 or (len(passes) < MOST and sum(map(sum, passes[1:])) < enough_s):
        seconds.clear()
        stage.forward(x, state)
        stage.backward(dy, state)
        passes.append([seconds[index] for index, _ in stage.active[stage.own]])
    return [min(of_layer) for of_layer in zip(*passes[1:], strict=True)]  # without the first pass, which may compile
