"""Seconds of an epoch (:func:`predicted`) by the pace of its workers (:data:`PACES`).

===========  =========================================================================================================
``step``     all workers exchange in every step, and wait for each other
``period``   all do the same steps, and exchange every few of them
``own``      each takes batches and exchanges with a store or server by itself: the slowest of three bounds counts
             (Denning and Buzen 1978), a worker's own path, the server, and all cores together
``stages``   ranks have parts of a network, and micro-batches pass through these: M + P - 1 turns of the slowest of P
             stages for M micro-batches (Huang et al. 2019)
===========  =========================================================================================================
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil, log, log2, sqrt

from psframe.errors import UserError
from psframe.predict import compute, exchange, learned
from psframe.predict.job import ExchangePlan
from psframe.predict.machine import link
from psframe.predict.model import Job, Prediction
from psframe.train.compute.parallel.partition import balanced

#: passes over a vector, in additions of one vector to another: of a worker in each step; of a worker, and of the
#: server, in each exchange. A pull is one, as is a post or push, and an update 5/3
PASSES = {
    "async_ps": (0.0, 2.0, exchange.UPDATE_VECTORS),
    "easgd": (exchange.UPDATE_VECTORS, 5.0, 0.0),
    "hogwild": (exchange.UPDATE_VECTORS, 0.0, 0.0),
    "dogwild": (exchange.UPDATE_VECTORS, 5.0, 0.0),
}
LOCAL_PASSES = 3.0  # of a step of ``async_ps`` between two pushes: scaled, kept, and taken from the parameters
PERIOD_PASSES = 2.0  # of an average: the difference to the last one, and the copy of the new one


@dataclass(frozen=True)
class Parts:
    """Seconds of an epoch by part, as in :class:`psframe.predict.model.Prediction`.

    ``is_anchored``: the exchange derives from measured ones.
    """

    steps: int
    compute_s: float
    wait_s: float
    exchange_s: float
    network_s: float
    is_anchored: bool = False


def in_step(job: Job, way: ExchangePlan) -> Parts:
    """Return the seconds where all workers exchange in every step."""
    steps, computed = _steps(job, way)
    seconds, is_anchored = job.exchange_s(way, job.work.param_bytes)
    shown = job.network_s(way, computed / steps)
    return Parts(steps, computed, computed * _late(job, way), steps * seconds, steps * shown, is_anchored)


def by_periods(job: Job, way: ExchangePlan) -> Parts:
    """Return the seconds where workers train by themselves for ``every`` steps, and then take a mean."""
    steps, computed = _steps(job, way)
    node, n_bytes = job.node(way), job.work.param_bytes
    seconds, is_anchored = job.exchange_s(replace(way, mode="allreduce", server=None, every=1), n_bytes)
    seconds += node.add_s(PERIOD_PASSES * n_bytes, way.here)
    local = node.update_s(n_bytes, way.here) + seconds / way.every
    late = _late(job, way) / sqrt(way.every)
    shown = job.network_s(way, computed / steps) / way.every
    return Parts(steps, computed, computed * late, steps * local, steps * shown, is_anchored)


def by_itself(job: Job, way: ExchangePlan) -> Parts:
    """Return the seconds where each worker goes at its own pace: the slowest of the three bounds."""
    steps = ceil(job.work.n_train / job.work.batches[0])
    cores, node, n_bytes = _cores(job, way), job.node(way), job.work.param_bytes
    of_step, of_exchange, of_server = PASSES[way.mode]
    if way.mode == "async_ps" and way.every > 1:
        of_step = LOCAL_PASSES
    busy = min(way.here, cores // way.nodes)
    moved_s = node.add_s((of_step + of_exchange / way.every) * n_bytes, busy)
    served_s = node.add_s(of_server * n_bytes, 1) / way.every
    computed_s = job.compute_s(way, job.work.batches[0]) / job.turns(way)
    bounds = (
        (computed_s + moved_s) * ceil(steps / way.n_workers),
        served_s * steps,
        (computed_s + moved_s + served_s) * steps / cores,
    )
    whole = max(bounds)
    shown = computed_s * max(steps / cores, ceil(steps / way.n_workers))
    return Parts(steps, min(whole, shown), 0.0, max(0.0, whole - shown), _store_s(job, way, steps))


def _store_s(job: Job, way: ExchangePlan, steps: int) -> float:
    """Return the seconds in which the link of the node with the store carries what the other nodes pull and push."""
    if way.nodes == 1:
        return 0.0
    rate = link(way.link or job.machine.link).gbit.value * 1e9 / 8
    return 2 * job.work.param_bytes / rate * steps / way.every * (way.nodes - 1) / way.nodes


def in_stages(job: Job, way: ExchangePlan) -> Parts:
    """Return the seconds where every replica of the network is a pipeline of stages, of shards each."""
    work, batch = job.work, job.work.batches[0]
    steps = ceil(work.n_train / (way.n_workers * batch))
    n_micro = min(way.micro_batches, batch)
    n = batch / n_micro
    costs = compute.of_layers(work, n, job.core(way), way.threads)
    if len(costs) < way.stages:
        raise UserError(
            f"parallel.pipeline must leave a layer for every stage, got {way.stages} stages for {len(costs)} layers; "
            f"give {len(costs)} or less"
        )
    stages = [slice(*ends) for ends in pairwise(balanced(costs, way.stages))]
    computed = [sum(costs[stage]) / way.shards for stage in stages]
    passed = [_passed_s(job, way, stage, n) for stage in stages]
    turns = max(1.0, way.ranks / _cores(job, way))
    path = max(map(sum, zip(computed, passed, strict=True))) * (n_micro + way.stages - 1)
    mean_s = n_micro * turns / way.stages  # of a second of each stage, a rank's mean share of a step
    step_s, computed_s = max(path, (sum(computed) + sum(passed)) * mean_s), sum(computed) * mean_s
    exchanged, is_anchored = _of_replicas(job, way, stages)
    return Parts(steps, steps * computed_s, steps * max(0.0, step_s - computed_s), steps * exchanged, 0.0, is_anchored)


def _cores(job: Job, way: ExchangePlan) -> int:
    """Return the cores that a job has on all of its nodes."""
    return max(1, int(job.machine.cores.value / job.hosts)) * way.nodes


def _of_replicas(job: Job, way: ExchangePlan, stages: list[slice]) -> tuple[float, bool]:
    """Return the seconds in which the replicas of the stage with most parameters exchange, and if they are measured."""
    if way.n_workers == 1:
        return job.node(way).update_s(job.work.param_bytes / way.stages / way.shards, way.here), False
    n_bytes = 4 * max(sum(layer.params for layer in job.work.layers[stage]) for stage in stages) / way.shards
    return job.exchange_s(replace(way, ranks=way.n_workers, stages=1, shards=1, micro_batches=1), int(n_bytes))


def _passed_s(job: Job, way: ExchangePlan, stage: slice, n: float) -> float:
    """Return the seconds in which a rank of a stage hands on a micro-batch, and its shards gather their layers."""
    node, layers = job.node(way), job.work.layers[stage]
    out = 4 * n * layers[-1].outputs
    seconds = 2 * node.copy_s(out, 1) if way.stages > 1 else 0.0
    if way.shards > 1:
        gathered = 4 * n * sum(layer.outputs for layer in layers if layer.params)
        seconds += node.add_s(2 * gathered, way.shards)
        seconds += node.wait_s(2 * sum(bool(layer.params) for layer in layers) * ceil(log2(way.shards)))
    return seconds


def _steps(job: Job, way: ExchangePlan) -> tuple[int, float]:
    """Return the steps of an epoch, and its seconds of computation: the last step shares the remaining samples."""
    n, batch = job.work.n_train, job.work.batches[0]
    if way.blocks:  # of each step a worker computes its blocks one after the other, and adds their gradients
        own = ceil(way.blocks / way.n_workers)
        added = (own - 1) * job.node(way).add_s(job.work.param_bytes, way.here)
        steps = ceil(n / (way.blocks * batch))
        return steps, n / (way.blocks * batch) * own * job.compute_s(way, batch) + steps * added
    full_steps, left = divmod(n, way.n_workers * batch)
    seconds = full_steps * job.compute_s(way, batch)
    if left:
        seconds += job.compute_s(way, left / way.n_workers)
    return full_steps + (left > 0), seconds


def _late(job: Job, way: ExchangePlan) -> float:
    """Return by how much the slowest worker is later than all, over a step's computation."""
    if job.here and way.n_workers > 1 and job.turns(way) == 1:
        return job.work.deviation * sqrt(2 * log(way.n_workers))
    return 0.0


PACES: dict[str, Callable[[Job, ExchangePlan], Parts]] = {
    "step": in_step,
    "period": by_periods,
    "own": by_itself,
    "stages": in_stages,
}


def predicted(job: Job, way: ExchangePlan) -> Prediction:
    """Return the prediction of an epoch for a way to train."""
    found = PACES[way.pace](job, way)
    measured = ["compute"] * job.here + ["exchange"] * found.is_anchored
    factor = learned.factor(job.machine.checks, job.named(way), way.ranks, job.hosts) if job.here else 1.0
    parts = found.compute_s, found.wait_s, found.exchange_s, found.network_s
    return Prediction(way, found.steps, *parts, tuple(measured), job.notes(way), factor)
