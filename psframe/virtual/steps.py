"""Steps of virtual ranks (:class:`TakingTime`): gradients are computed for real, and take a machine's seconds."""

import mmap
from contextlib import suppress
from typing import Any

import numpy as np

from psframe import compiled
from psframe.memory.tensor_names import role_of
from psframe.nn.base import LayerHook
from psframe.nn.network import Network
from psframe.nn.operations import of_forward
from psframe.train.run import Run
from psframe.virtual.costs import Costs


class TakingTime:
    """Computes a run's gradients for real, and lets the seconds go by that this takes on the machine.

    A worker of a server has parameters of its own, which nobody changes, so it computes when the seconds are over: of a
    thousand such workers, those that compute or wait to be served have gradients. Other ranks compute first, and tell
    the hook of backward when its layers are due. Behind a computation no rank keeps activations. An evaluation takes no
    time.
    """

    def __init__(self, costs: Costs, rank: int, run: Run):
        self.costs, self.rank, self.batch = costs, rank, run.sampler.batch_size
        self._gradients, self._evaluate = run.work.gradients, run.work.evaluate
        run.work.gradients, run.work.evaluate = self.gradients, self.evaluate  # type: ignore
        traits = run.sync.traits
        self.is_last = traits.server is not None and traits.store is not None
        self.shares = shares(run.network)
        self.blocks = [(role_of(place), memory) for place, memory in run.blocks if len(memory)]

    def gradients(
        self, samples: np.ndarray, n_samples: int, epoch: int, losses: np.ndarray, hook: LayerHook | None = None
    ) -> float:
        seconds, reached = self.costs.step_s(self.rank, len(samples), self.batch), list[slice]()
        if self.is_last:
            self._forget("gradients")
            self.costs.ranks.sleep(seconds)
        noting = LayerHook(hook.layers, reached.append) if hook else None
        loading_s = self._gradients(samples, n_samples, epoch, losses, noting)
        self._forget("activations")
        passed = 1.0 if self.is_last else 0.0
        for segment in reached:
            passed = self._pass(seconds, passed, self.shares.get(segment.start, 1.0))
            hook.call(segment)  # type: ignore
        self._pass(seconds, passed, 1.0)
        return loading_s

    def _pass(self, seconds: float, begin: float, end: float) -> float:
        """Let a step's seconds go by from one share of it to another, and return that; nothing, if it is earlier."""
        if end > begin:
            self.costs.ranks.sleep(seconds * (end - begin))
        return max(begin, end)

    def evaluate(self, *given: Any, **named: Any) -> np.ndarray:
        if self.is_last:
            self._forget("gradients")
        tested = self._evaluate(*given, **named)
        self._forget("activations")
        return tested

    def _forget(self, role: str) -> None:
        """Give back the pages of a role of which the next step reads nothing before it writes it."""
        for of, memory in self.blocks:
            if of == role:
                with suppress(OSError):  # of huge pages that are reserved, which older kernels keep
                    compiled.numa.madvise(memory, mmap.MADV_DONTNEED)


def shares(network: Network) -> dict[int, float]:
    """Return the share of a step after which backward has reached a place of the gradients, by that place.

    Forward takes a third of the step, and each layer's backward as much of the rest as of all multiplications.
    """
    operations = [of_forward(network, index) for index in range(len(network.layers))]
    every, found = sum(operations) or 1.0, {}
    for index, begin in enumerate(network.begins):
        found[begin] = (1 + 2 * sum(operations[index:]) / every) / 3
    return found
