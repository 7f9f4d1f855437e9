"""Training on virtual ranks (:func:`simulated`): the code of real ranks, in the time of another machine."""

import gc
import mmap
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from psframe import compiled
from psframe.cluster.cluster import Cluster
from psframe.cluster.gates import PeerLost
from psframe.cluster.joining import join
from psframe.cluster.pool import Pool
from psframe.errors import UserError
from psframe.memory.tensor_names import role_of
from psframe.nn.base import LayerHook
from psframe.nn.network import Network
from psframe.nn.operations import of_forward
from psframe.record.clock import CLOCK
from psframe.train import loop, recovery, session
from psframe.train.elastic.resize import dismiss
from psframe.train.epoch import traffics
from psframe.train.plan import plan as planning
from psframe.train.run import Run
from psframe.virtual.costs import Costs, Premises
from psframe.virtual.mail import Job
from psframe.virtual.site import site, world

#: keys of a config that hold for real ranks only: threads that watch them, samples of their resources, spares
REAL_ONLY = ("fault.late_s=0", "record.usage=false", "train.threads=1", "elastic.ranks=null")


@dataclass(frozen=True)
class Simulation:
    """A job to simulate.

    Attributes
    ----------
    config : str
        Path of a YAML file.
    overrides : sequence of str
    premises : Premises
    machine : str
        Name of the machine, for the record.
    """

    config: str
    overrides: Sequence[str]
    premises: Premises
    machine: str


def simulated(asked: Simulation, costs: Costs) -> Run:
    """Train a config on virtual ranks, which print nothing; return rank 0's run. ``costs`` are of its premises.

    Raises
    ------
    UserError
        If these ranks cannot run the config, or cannot go on without those that die.
    """
    ranks = costs.ranks
    every = world(ranks, Job(asked.premises.node_of, site, costs))
    with CLOCK.virtual(lambda: ranks.now_s, ranks.sleep):
        try:
            runs: list[Run | None] = ranks.run(lambda rank: _on_rank(asked, costs, every[rank]))
        except PeerLost as lost:
            raise UserError(f"{lost}; let other ranks die, or at another time, or take another sync.mode") from None
    return next(run for run in runs if run and run.cluster.rank == 0)


def _on_rank(asked: Simulation, costs: Costs, comm: Any) -> Run:
    cluster = join(comm)
    number = costs.ranks.current.number

    def prepared(run: Run) -> None:
        gc.freeze()  # what this rank has made, which each collection of later ones would look through
        run.labels["simulated"] = asked.machine
        _TakingTime(costs, number, run)
        in_step, works = run.sync.traits.in_step, run.team.worker is not None
        node = asked.premises.node
        busy = min(node.ranks, int(node.machine.cores.value))
        costs.meter(number, traffics(run), node.ranks if in_step else busy if works else 1)

    return trained(cluster, asked.config, asked.overrides, prepared)


def trained(
    cluster: Cluster, config: str, overrides: Sequence[str], prepare: Callable[[Run], None] = lambda run: None
) -> Run:
    """Train a config to its end, also without ranks that die, and by way of checkpoints that it goes back to.

    Return the run as it ends. All ranks must call.

    Parameters
    ----------
    prepare : callable
        Is given the run before it trains, and each time that it goes on in another way.

    Raises
    ------
    AgreedError
        On every rank, if the run is impossible.
    """
    plan = planning.make(cluster, config, [*overrides, *REAL_ONLY])
    pool = Pool(cluster, survives=plan.config.fault.on_worker_loss == "continue")
    run = session.ready(cluster, plan, quiet=True)
    succession = session.successive(run, plan, pool, quiet=True, is_open=True)

    def train(run: Run) -> None:
        prepare(run)
        loop.train(run)

    if not run.progress.stop:
        run, _ = recovery.trained(run, plan, train, pool, succession)
    run.cluster.run_on_root(partial(session.finish, run))
    dismiss(pool)
    return run


class _TakingTime:
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
