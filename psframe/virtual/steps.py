"""Steps of virtual ranks (:class:`TakingTime`): gradients are computed for real, and take a machine's seconds."""

from collections.abc import Callable
from typing import Any

import numpy as np

from psframe.nn.base import LayerHook
from psframe.nn.network import Network
from psframe.nn.operations import of_forward
from psframe.sync.server_mode import ServerMode
from psframe.train.run import Run
from psframe.virtual.before import Before
from psframe.virtual.costs import Costs
from psframe.virtual.pages import forget
from psframe.virtual.sparing import Sparing, of_roles


class TakingTime(Before):
    """Computes a run's gradients for real, and lets the seconds go by that this takes on the machine.

    A worker of a server has parameters of its own, which nobody changes, so it computes when the seconds are over: of a
    thousand such workers, those that compute or wait to post have gradients, and the server's memory those that it has
    not served yet. Other ranks compute first, and tell the hook of backward when its layers are due. An evaluation
    takes no time. Activations that a rank does not share are given back behind each computation.
    """

    def __init__(self, costs: Costs, rank: int, run: Run, sparing: Sparing):
        super().__init__(run.work)
        self.costs, self.rank, self.batch = costs, rank, run.sampler.batch_size
        self.is_last = isinstance(run.sync, ServerMode)
        self.shares = shares(run.network)
        self.activations = of_roles(run, "activations")
        self.kept = sparing.share_activations(run)

    def gradients(
        self, samples: np.ndarray, n_samples: int, epoch: int, losses: np.ndarray, hook: LayerHook | None = None
    ) -> float:
        seconds, reached = self.costs.step_s(self.rank, len(samples), self.batch), list[slice]()
        if self.is_last:
            self.costs.compute(seconds)
        noting = LayerHook(hook.layers, reached.append) if hook else None
        loading_s = self._computed(self.behind.gradients, samples, n_samples, epoch, losses, noting)
        passed = 1.0 if self.is_last else 0.0
        for segment in reached:
            passed = self._pass(seconds, passed, self.shares.get(segment.start, 1.0))
            hook.call(segment)  # type: ignore
        self._pass(seconds, passed, 1.0)
        return loading_s

    def _pass(self, seconds: float, begin: float, end: float) -> float:
        """Let a step's seconds go by from one share of it to another, and return that; nothing, if it is earlier."""
        if end > begin:
            self.costs.compute(seconds * (end - begin))
        return max(begin, end)

    def evaluate(self, *given: Any, **named: Any) -> np.ndarray:
        tested: np.ndarray = self._computed(self.behind.evaluate, *given, **named)
        return tested

    def _computed(self, compute: Callable[..., Any], *given: Any, **named: Any) -> Any:
        me = self.costs.ranks.current
        before = me.n_points
        found = compute(*given, **named)
        if not self.kept:
            for memory in self.activations:
                forget(memory)
        elif me.n_points != before:
            raise RuntimeError("a rank met others within a computation, in whose activations all ranks compute")
        return found


def shares(network: Network) -> dict[int, float]:
    """Return the share of a step after which backward has reached a place of the gradients, by that place.

    Forward takes a third of the step, and each layer's backward as much of the rest as of all multiplications.
    """
    operations = [of_forward(network, index) for index in range(len(network.layers))]
    every, found = sum(operations) or 1.0, {}
    for index, begin in enumerate(network.begins):
        found[begin] = (1 + 2 * sum(operations[index:]) / every) / 3
    return found
