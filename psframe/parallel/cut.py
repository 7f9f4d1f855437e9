"""Where a network is cut into stages: so that the one that takes longest takes as short as it can."""

from collections.abc import Sequence
from itertools import accumulate
from time import perf_counter

import numpy as np

from psframe.errors import UserError
from psframe.nn.base import Pass, Workspace
from psframe.nn.network import Network

ENOUGH_S, MOST = 0.05, 5  # a layer is measured again until it took so long, but not more often


def balanced(costs: Sequence[float], n_stages: int) -> list[int]:
    """Return where each stage begins, and the end: n_stages + 1 places among the layers; no stage is without one.

    The largest sum of a stage is as small as it can be; of such cuts the one whose later stages are the smallest.
    """
    n, before = len(costs), [0.0, *accumulate(costs)]
    #: by stages and layers: the largest sum in the best cut of the first layers into so many, and where its last begins
    best = [[(before[i], 0) for i in range(n + 1)]]
    for stages in range(1, n_stages):
        row = [(float("inf"), 0)] * (n + 1)
        for end in range(stages + 1, n + 1):
            row[end] = min((max(best[-1][at][0], before[end] - before[at]), -at) for at in range(stages, end))
        best.append([(largest, -at) for largest, at in row])
    cuts = [n]
    for row in reversed(best):
        cuts.append(row[cuts[-1]][1])
    return cuts[::-1]


def judge(network: Network, n_stages: int) -> None:
    """UserError where there are more stages than layers that run."""
    if n_stages > len(network.active):
        raise UserError(
            f"parallel.pipeline must leave a layer for every stage, got {n_stages} stages for a model of "
            f"{len(network.active)} layer(s) that a cut may pass between; give parallel.pipeline="
            f"{len(network.active)} or less"
            + (", or a torch.nn.Sequential, whose parts are layers" if len(network.active) == 1 else "")
        )


def measured(network: Network, n_samples: int, kernels: str) -> list[float]:
    """Return the seconds of a pass forward and back of ``n_samples`` through each layer that runs, one at a time.

    A layer has memory of its own for as long as it is measured: no more than it will have in its stage. It runs on one
    thread, in parts as in the network.
    """
    found, part = [], network.part_of(n_samples, kernels, 1)
    for number, (_, layer) in enumerate(network.active):
        params, grads = (
            {name: np.zeros([p.shape[a] for a in p.order], np.float32).transpose(np.argsort(p.order))
             for name, p in layer.params.items()}
            for _ in range(2)
        )  # fmt: skip
        layer.bind(params, grads, Workspace(n_samples, "float32", np.zeros, kernels, adds=True))
        x = np.zeros((n_samples, *network.shape_before(number)), np.float32)
        dy = np.ones((n_samples, *network.shape_before(number + 1)), np.float32)
        whole, times = Pass(True, 0, 0, np.arange(n_samples)), list[float]()
        each = part if number < network.n_front else n_samples
        parts = [(lo, min(lo + each, n_samples)) for lo in range(0, n_samples, each)]
        while len(times) < 2 or (len(times) < MOST and sum(times[1:]) < ENOUGH_S):
            began = perf_counter()
            for lo, hi in parts:
                layer.forward(x[lo:hi], whole.part(lo, hi))
            for lo, hi in parts:
                layer.backward(x[lo:hi], dy[lo:hi], whole.part(lo, hi), number > 0)
            times.append(perf_counter() - began)
        found.append(min(times[1:]))  # the first one may compile
    return found
