"""Steps of virtual ranks (:class:`TakingTime`): gradients are computed for real, and take a machine's seconds."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from psframe.memory.tensor_names import role_of
from psframe.nn.base import LayerHook
from psframe.nn.network import Network
from psframe.nn.operations import of_forward
from psframe.sync.server_mode import ServerMode
from psframe.sync.stores.mailbox import Mailbox
from psframe.train.run import Run
from psframe.virtual.costs import Costs
from psframe.virtual.pages import Common, Copies, forget


class TakingTime:
    """Computes a run's gradients for real, and lets the seconds go by that this takes on the machine.

    A worker of a server has parameters of its own, which nobody changes, so it computes when the seconds are over: of a
    thousand such workers, those that compute or wait to post have gradients, and the server's memory those that it has
    not served yet. Other ranks compute first, and tell the hook of backward when its layers are due. An evaluation
    takes no time.

    Behind a computation no rank keeps activations. Where no other rank runs before its end, all have the same
    ``common`` pages for them, which stay in the cache; else they are given back.
    """

    def __init__(self, costs: Costs, rank: int, run: Run, common: Common):
        self.costs, self.rank, self.batch = costs, rank, run.sampler.batch_size
        self._gradients, self._evaluate = run.work.gradients, run.work.evaluate
        run.work.gradients, run.work.evaluate = self.gradients, self.evaluate  # type: ignore
        self.is_last = isinstance(run.sync, ServerMode)
        if isinstance(run.sync, ServerMode):
            self._step, run.sync.step = run.sync.step, self.step  # type: ignore
            if run.team.worker is None:
                _spare_posts(run.sync.mailbox)
        self.shares = shares(run.network)
        self.blocks = run.blocks
        self.kept = _share(common, run)

    def gradients(
        self, samples: np.ndarray, n_samples: int, epoch: int, losses: np.ndarray, hook: LayerHook | None = None
    ) -> float:
        seconds, reached = self.costs.step_s(self.rank, len(samples), self.batch), list[slice]()
        if self.is_last:
            self.costs.compute(seconds)
        noting = LayerHook(hook.layers, reached.append) if hook else None
        loading_s = self._computed(self._gradients, samples, n_samples, epoch, losses, noting)
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

    def step(self, n_samples: int, lr: float, step: int) -> bool:
        is_exchanged = self._step(n_samples, lr, step)
        _forget(self.blocks, "gradients")
        return is_exchanged

    def evaluate(self, *given: Any, **named: Any) -> np.ndarray:
        tested: np.ndarray = self._computed(self._evaluate, *given, **named)
        return tested

    def _computed(self, compute: Callable[..., Any], *given: Any, **named: Any) -> Any:
        me = self.costs.ranks.current
        before = me.n_points
        found = compute(*given, **named)
        if not self.kept:
            _forget(self.blocks, "activations")
        elif me.n_points != before:
            raise RuntimeError("a rank met others within a computation, in whose activations all ranks compute")
        return found


def spare(data: Copies, run: Run) -> None:
    """Let nodes share the pages of their data, which are the same, and ranks keep nothing of their first computation.

    That compiles kernels. A thousand ranks do it at the same time.
    """
    warm = run.work.warm

    def warmed() -> None:
        warm()
        _forget(run.blocks, "gradients", "activations")

    run.work.warm = warmed  # type: ignore
    for place, memory in run.blocks:
        if role_of(place) == "data":
            data.copy(memory, memory)


def _share(common: Common, run: Run) -> bool:
    """Let a rank compute in the activations of all, unless it meets others meanwhile; return True if it does."""
    if run.work.ranks_meet or run.config.parallel.is_cut:
        return False
    blocks = [memory for place, memory in run.blocks if role_of(place) == "activations"]
    return all(common.share(number, memory) for number, memory in enumerate(blocks))


def _spare_posts(mailbox: Mailbox) -> None:
    """Let rank 0 keep no post that it has released, which the worker writes anew."""
    ack = mailbox.ack

    def released(worker: int, word: int = 0) -> None:
        for vector in mailbox.inbox[worker]:
            forget(vector)
        ack(worker, word)

    mailbox.ack = released  # type: ignore


def _forget(blocks: Sequence[tuple[str, np.ndarray]], *roles: str) -> None:
    """Give back the pages of roles of which the next computation reads nothing before it writes it."""
    for place, memory in blocks:
        if role_of(place) in roles:
            forget(memory)


def shares(network: Network) -> dict[int, float]:
    """Return the share of a step after which backward has reached a place of the gradients, by that place.

    Forward takes a third of the step, and each layer's backward as much of the rest as of all multiplications.
    """
    operations = [of_forward(network, index) for index in range(len(network.layers))]
    every, found = sum(operations) or 1.0, {}
    for index, begin in enumerate(network.begins):
        found[begin] = (1 + 2 * sum(operations[index:]) / every) / 3
    return found
