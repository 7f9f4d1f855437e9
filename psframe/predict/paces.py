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

#: passes over a vector, in additions of one vector to another: of a worker in a step, in a pull, and in a push or post;
#: of the server for each post. A pull is one, as is the post of a vector, and an update 5/3
PASSES = {
    "async_ps": (0.0, 1.0, 1.0, exchange.UPDATE_VECTORS),
    "bounded async_ps": (0.0, 1.0, 1.0, exchange.UPDATE_VECTORS),
    "compensated async_ps": (0.0, 1.0, 2.0, exchange.UPDATE_VECTORS + 6.0),
    "bounded compensated async_ps": (0.0, 1.0, 2.0, exchange.UPDATE_VECTORS + 6.0),
    "easgd": (exchange.UPDATE_VECTORS, 1.0, 4.0, 0.0),
    "hogwild": (exchange.UPDATE_VECTORS, 0.0, 0.0, 0.0),
    "dogwild": (exchange.UPDATE_VECTORS, 1.0, 6.0, 0.0),
}
LOCAL_PASSES = 3.0  # of a step of ``async_ps`` between two pulls: scaled, kept, and taken from the parameters
PERIOD_PASSES = 2.0  # of an average: the difference to the last one, and the copy of the new one
LAST_AVERAGES = 1  # at the end of an epoch: of the optimizer's one vector of state
SPLIT = ("Dense", "Conv2d")  # layers that shards divide
MEETINGS = 4  # barriers of a split layer's shards in a step


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
    hides = way.blocks <= way.n_workers and way.micro_batches == 1
    shown = job.network_s(way, computed / steps if hides else 0.0)
    return Parts(steps, computed, computed * _late(job, way), steps * seconds, steps * shown, is_anchored)


def by_periods(job: Job, way: ExchangePlan) -> Parts:
    """Return the seconds where workers train by themselves for ``every`` steps, and then take a mean."""
    steps, computed = _steps(job, way)
    node, n_bytes = job.node(way), job.work.param_bytes
    exchanged = replace(way, mode="allreduce", server=None, every=1)
    seconds, is_anchored = job.exchange_s(exchanged, n_bytes)
    seconds += node.add_s(PERIOD_PASSES * n_bytes, way.here)
    n_averages = ceil(steps / way.every) + LAST_AVERAGES
    late = _late(job, way) / sqrt(way.every)
    shown = job.network_s(exchanged, 0.0)
    spent = steps * node.update_s(n_bytes, way.here) + n_averages * seconds
    return Parts(steps, computed, computed * late, spent, n_averages * shown, is_anchored)


def by_itself(job: Job, way: ExchangePlan) -> Parts:
    """Return the seconds where each worker goes at its own pace: the slowest of the bounds."""
    steps = ceil(job.work.n_train / job.work.batches[0])
    cores, node, n_bytes = _cores(job, way), job.node(way), job.work.param_bytes
    of_step, of_pull, of_push, of_server = PASSES[way.mode]
    if "async_ps" in way.mode and max(way.every, way.pull_every) > 1:
        of_step = LOCAL_PASSES
    exchangers = way.here if way.mode == "dogwild" else 1  # of a node's ranks one exchanges for all
    passes = of_step + (of_pull / way.pull_every + of_push / way.every) / exchangers
    moved_s = node.add_s(passes * n_bytes, min(way.here, max(1, cores // way.nodes)))
    served_s = node.add_s(of_server * n_bytes, 1) / way.every
    computed_s = job.compute_s(way, job.work.batches[0]) / job.turns(way)
    granted_s = served_s if "bounded" in way.mode else 0.0  # a worker waits for what the server says of the others
    own_steps = ceil(steps / way.n_workers)
    bounds = (
        (computed_s + moved_s + granted_s) * own_steps,
        served_s * steps,
        (computed_s * way.threads + moved_s + served_s) * steps / cores,
    )
    shown = min(max(bounds), computed_s * max(steps * way.threads / cores, own_steps))
    link_s = _store_s(job, way, steps / exchangers)
    return Parts(steps, shown, 0.0, max(bounds) - shown, max(0.0, link_s - max(bounds)))


def _store_s(job: Job, way: ExchangePlan, steps: float) -> float:
    """Return the seconds in which the link of the node with the store carries what the other nodes pull and push."""
    if way.nodes == 1:
        return 0.0
    rate = link(way.link or job.machine.link).gbit.value * 1e9 / 8
    vectors = steps * (1 / way.every + 1 / way.pull_every)
    return vectors * job.work.param_bytes / rate * (way.nodes - 1) / way.nodes


def in_stages(job: Job, way: ExchangePlan) -> Parts:
    """Return the seconds where every replica of the network is a pipeline of stages, of shards each."""
    work, batch = job.work, job.work.batches[0]
    if way.nodes > 1:
        raise UserError(f"psframe.predict knows networks that are cut on one node, got {way.nodes} nodes; give one")
    n_micro = min(way.micro_batches, batch)
    costs = compute.of_layers(work, batch / n_micro, job.core(way), way.threads)
    if len(costs) < way.stages:
        raise UserError(
            f"parallel.pipeline must leave a layer for every stage, got {way.stages} stages for {len(costs)} layers; "
            f"give {len(costs)} or less"
        )
    costs = [s / way.shards if la.name in SPLIT else s for s, la in zip(costs, work.layers, strict=True)]
    stages = [slice(*ends) for ends in pairwise(balanced(costs, way.stages))]
    step_s, computed_s = _pipeline_s(job, way, costs, stages, n_micro)
    steps = work.n_train / (way.n_workers * batch)
    n_bytes = 4 * max(sum(layer.params for layer in work.layers[stage]) for stage in stages) / way.shards
    seconds, is_anchored = job.node(way).update_s(n_bytes, way.here), False
    if way.n_workers > 1:
        replicas = replace(way, ranks=way.n_workers, stages=1, shards=1, micro_batches=1)
        seconds, is_anchored = job.exchange_s(replicas, int(n_bytes))
    waited = steps * max(0.0, step_s - computed_s)
    return Parts(ceil(steps), steps * computed_s, waited, ceil(steps) * seconds, 0.0, is_anchored)


def _pipeline_s(
    job: Job, way: ExchangePlan, costs: list[float], stages: list[slice], n_micro: int
) -> tuple[float, float]:
    """Return the seconds of a step, and the mean of what ranks compute of it."""
    n = job.work.batches[0] / n_micro
    computed = [sum(costs[stage]) for stage in stages]
    passed = [_passed_s(job, way, stage, n) for stage in stages]
    turns = max(1.0, way.ranks * way.threads / _cores(job, way))
    path = max(map(sum, zip(computed, passed, strict=True))) * (n_micro + way.stages - 1)
    mean = n_micro * turns / way.stages  # of a second of each stage, a rank's mean share of a step
    return max(path, (sum(computed) + sum(passed)) * mean), sum(computed) * mean


def _passed_s(job: Job, way: ExchangePlan, stage: slice, n: float) -> float:
    """Return the seconds in which a rank of a stage hands on a micro-batch, and its shards gather and add."""
    node, layers = job.node(way), job.work.layers
    seconds = 2 * node.copy_s(4 * n * layers[stage][-1].outputs, 1) if way.stages > 1 else 0.0
    if way.shards > 1:
        split = [i for i in range(*stage.indices(len(layers))) if layers[i].name in SPLIT]
        added = sum(layers[i - 1].outputs for i in split if i)  # gradients of what they read, of each shard
        gathered = sum(layers[i].outputs for i in split)
        seconds += node.add_s(4 * n * (way.shards * added + gathered), way.shards)
        seconds += node.wait_s(MEETINGS * len(split) * ceil(log2(way.shards)))
    return seconds


def _cores(job: Job, way: ExchangePlan) -> int:
    """Return the cores that a job has on all of its nodes."""
    return max(1, int(job.machine.cores.value / job.hosts * way.nodes))


def _steps(job: Job, way: ExchangePlan) -> tuple[int, float]:
    """Return the steps of an epoch, and its seconds of computation: the last step shares the remaining samples."""
    n, batch = job.work.n_train, job.work.batches[0]
    if way.blocks:
        steps = ceil(n / way.samples)
        return steps, n / way.samples * _blocks_s(job, way, way.samples / way.blocks)
    full_steps, left = divmod(n, way.n_workers * batch)
    seconds = full_steps * _share_s(job, way, batch)
    if left:
        seconds += _share_s(job, way, left / way.n_workers)
    return full_steps + (left > 0), seconds


def _share_s(job: Job, way: ExchangePlan, n: float) -> float:
    """Return the seconds of a worker's ``n`` samples, in micro-batches if it has these."""
    n_micro = min(way.micro_batches, max(1.0, n))
    return n_micro * job.compute_s(way, n / n_micro)


def _blocks_s(job: Job, way: ExchangePlan, n: float) -> float:
    """Return the seconds of a step's blocks of ``n`` samples: the busiest worker's, or all of them on all cores."""
    busiest = max(1, way.blocks >> (way.n_workers.bit_length() - 1))  # as psframe.collectives.order has it
    alone = job.compute_s(way, n) / job.turns(way)
    added = (busiest - 1) * job.node(way).add_s(job.work.param_bytes, way.here)
    return alone * max(busiest, way.blocks * way.threads / _cores(job, way)) + added


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
