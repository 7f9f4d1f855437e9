"""Stretches of training (:func:`train`): some steps of a run that exists, timed by phase."""

import os
from dataclasses import dataclass
from typing import Any

from psframe.cluster import affinity
from psframe.cluster.cluster import Cluster
from psframe.train import epoch, epoch_metrics, loop
from psframe.train.assembly import assemble, setup
from psframe.train.data.dataset import LoadedData
from psframe.train.epoch_metrics import EpochTimings
from psframe.train.plan import plan as plans
from psframe.train.plan.plan import Plan
from psframe.train.run import Run

#: overrides of every candidate: it leaves nothing behind, and no schedule ends
BESIDE = ("train.epochs=1000000", "checkpoint.every_epochs=0", "checkpoint.every_seconds=0", "checkpoint.resume=none")
PHASES = ("data", "compute", "wait", "exchange")  # of epoch_metrics.phases


@dataclass(frozen=True)
class Seen:
    """Measurements of a rank, as :func:`psframe.train.epoch_metrics.phases` takes them."""

    timings: EpochTimings
    worker: int | None
    wait_s: float


class Candidate:
    """A run that trains stretches, in turn with others of the same ranks. All ranks must make it.

    Parameters
    ----------
    cluster : Cluster
    plan : Plan
    held : LoadedData or None
        Data of another candidate, which are used again.
    """

    def __init__(self, cluster: Cluster, plan: Plan, held: LoadedData | None):
        self.plan, self.cpus = plan, os.sched_getaffinity(0)
        assemble.limit_blas(plan)
        self.run: Run = assemble.with_fallback(cluster, plan, lambda: assemble.build_run(cluster, plan, held))
        setup.init_parameters(self.run, None, quiet=True)
        setup.attach(self.run)

    def resume(self, cluster: Cluster) -> None:
        """Bind this rank, and set how ranks wait, as the candidate asks. All ranks must call."""
        affinity.bind(self.cpus)
        plans.configure(self.plan, cluster)

    def close(self) -> None:
        """Release what the run holds outside of this process. All ranks must call."""
        self.run.sync.close()


def train(run: Run, n_steps: int) -> dict[str, Any]:
    """Train the last ``n_steps`` full steps of an epoch, or as many as it has. All ranks must call.

    Returns
    -------
    dict
        On rank 0: ``samples``; ``seconds`` of the slowest rank; the mean worker's seconds by phase. Elsewhere {}.
    """
    cluster, sampler = run.cluster, run.sampler
    n_full = max(1, min(n_steps, sampler.n_samples // sampler.samples_per_step))
    n_samples = min(sampler.n_samples, n_full * sampler.samples_per_step)
    sampler.cursor = sampler.n_samples - n_samples
    run.progress.begun_at = sampler.cursor
    run.progress.epoch += 1  # other samples than before, which no cache holds
    cluster.barrier()
    with run.mover:
        timings = epoch.train_epoch(run)
    cluster.barrier()
    timings.times += cluster.clock_offset_s if loop.together(run) else 0.0
    every = cluster.gather_in_time(Seen(timings, run.team.worker, run.tally.wait_s))
    epoch.forget(run)
    if not every:
        return {}
    phases = epoch_metrics.phases(every, loop.together(run))
    seconds = max(rank.timings.ended - rank.timings.begun for rank in every)
    return {"samples": n_samples, "seconds": seconds, "phases": dict(zip(PHASES, phases.tolist(), strict=True))}
