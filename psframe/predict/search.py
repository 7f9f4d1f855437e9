"""Sets of predictions: over :func:`ranks`, of one :func:`varied` key, and the :func:`best` ways on some cores."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import msgspec

from psframe.errors import UserError
from psframe.predict.alternatives import FIGURES
from psframe.predict.command import Asked
from psframe.predict.compute import line
from psframe.predict.job import ExchangePlan, Work
from psframe.predict.machine import Figure, Machine
from psframe.predict.model import Job, Prediction
from psframe.predict.paces import predicted

TOP = 5
#: fields of a way whose workers have whole networks and exchange in every step
IN_STEP = {"every": 1, "pull_every": 1, "stages": 1, "shards": 1, "micro_batches": 1}


@dataclass(frozen=True)
class Found:
    """A prediction and its label."""

    label: str
    prediction: Prediction


def ranks(asked: Asked) -> list[Found]:
    """Return predictions of the config over ranks, and of the same with several servers, or none."""
    return [Found(name, predicted(asked.job, way)) for n in asked.ranks for name, way in _curves(asked, n)]


def _curves(asked: Asked, n: int) -> Iterator[tuple[str, ExchangePlan]]:
    config_way = asked.at(n)
    yield f"{_curve(config_way)} (the config)", config_way
    for way in others(asked, n):
        if way != config_way:
            yield _curve(way), way


def _curve(way: ExchangePlan) -> str:
    """Return the label of a way, the same on one node and on many."""
    if way.pace == "own":
        return way.name
    memory = way.collective in ("shared", "hierarchical")
    servers = ", a server a node" if way.n_servers == way.nodes > 1 else ""
    name, _, _ = replace(way, n_servers=1).name.partition(" over ")
    return f"{name}{servers} over {'shared memory' if memory else way.collective}{way.encoded}"


def others(asked: Asked, n: int) -> Iterator[ExchangePlan]:
    """Yield the alternatives of interest on ``n`` ranks: servers, one and several, and none."""
    if n == 1:
        return
    nodes = asked.at(n, mode="allreduce", server=None, n_servers=1, **IN_STEP).nodes
    fast = "shared" if nodes == 1 else "hierarchical"
    server = {"mode": "sync_ps", "server": "dedicated", **IN_STEP}
    for collective in dict.fromkeys((fast, "buffer")):
        yield asked.at(n, **server, n_servers=1, collective=collective)
        yield asked.at(n, mode="allreduce", server=None, n_servers=1, collective=collective, **IN_STEP)
    if nodes > 1:
        k = min(nodes, n - 1)
        yield asked.at(n, **server, n_servers=k, collective="buffer")


def varied(asked: Asked, key: str, values: Sequence[Any]) -> list[Found]:
    """Return predictions with one key at each of several values (``alternatives.judged``), over ranks."""
    if key in ("server", "n_servers") and asked.way["mode"] != "sync_ps":
        raise UserError(
            f"--what-if {key} counts under sync.mode sync_ps, got {asked.way['mode']}; give sync.mode=sync_ps"
        )
    if key in ("reproducible", "batch_size") and asked.way["blocks"]:
        raise UserError(
            f"--what-if {key} counts where workers have batches, got train.reproducible=any_workers; give fixed_workers"
        )
    predictions = []
    for value, n in product(values, asked.ranks):
        job, other = _changed(asked, key, value)
        predictions.append(Found(f"{key}={value}", predicted(job, asked.at(n, **other))))
    return predictions


def _changed(asked: Asked, key: str, value: Any) -> tuple[Job, dict[str, Any]]:
    job = asked.job
    if key == "batch_size":
        return replace(job, work=resized(job.work, value)), {}
    if key in FIGURES:
        return replace(job, machine=_with(job.machine, key, value), here=False), {}
    if key == "mode":
        return job, {**IN_STEP, **asked.in_mode(value)}
    return job, {key: value}


def _with(of: Machine, key: str, value: float) -> Machine:
    plain = msgspec.to_builtins(of) | {key: msgspec.to_builtins(Figure(float(value), "--what-if")), "exchanges": []}
    changed: Machine = msgspec.convert(plain, Machine)
    return changed


def resized(work: Work, batch: int) -> Work:
    """Return the work with another batch size, on the line through the two measured ones."""
    scale = batch / work.batches[0]

    def at(seconds: tuple[float, float]) -> tuple[float, float]:
        fixed, per_sample = line(work.batches, seconds)
        return fixed + per_sample * batch, seconds[1]

    layers = [
        replace(
            layer,
            seconds={d: at(s) for d, s in layer.seconds.items()},
            flops={d: f * scale for d, f in layer.flops.items()},
            bytes={d: b * scale for d, b in layer.bytes.items()},
        )
        for layer in work.layers
    ]
    return replace(work, batches=(batch, work.batches[1]), step_s=at(work.step_s), layers=layers)


def best(asked: Asked) -> list[Found]:
    """Return the fastest ways on as many cores as the largest number of ranks, the fastest first."""
    cores = max(asked.ranks)
    predictions: dict[Any, Prediction] = {}
    for n in _powers(cores):
        for threads in _powers(max(1, cores // n)):
            for tier in asked.job.machine.tiers:
                per_node = max(1, asked.per_node // threads)
                for way in others(replace(asked, per_node=per_node), n):
                    way = replace(way, threads=threads, tier=tier)
                    predictions[way] = predicted(asked.job, way)
    ranked = sorted(predictions.values(), key=lambda p: (bool(p.notes), p.epoch_s))
    return [Found(f"{p.way.name}, {p.way.tier}", p) for p in ranked[:TOP]]


def _powers(most: int) -> list[int]:
    powers = [1 << i for i in range(most.bit_length()) if 1 << i <= most]
    return powers if powers[-1] == most else [*powers, most]
