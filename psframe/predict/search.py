"""Many predictions: over ranks, of one thing that varies, or of all ways to do it on so many cores."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import msgspec

from psframe.config import parse_value
from psframe.errors import UserError, nearest
from psframe.predict import machine
from psframe.predict.command import Asked
from psframe.predict.compute import line
from psframe.predict.job import Way, Work
from psframe.predict.machine import Figure, Machine
from psframe.predict.model import Job, Prediction

#: of a way to do it, and of a machine
WAYS = ("collective", "mode", "server", "n_servers", "reproducible", "tier", "link", "threads", "per_node")
FIGURES = ("cores", *machine.FIGURES)
KEYS = (*WAYS, "batch_size", *FIGURES)
TOP = 5


@dataclass(frozen=True)
class Found:
    """A prediction, and what it is called among others."""

    label: str
    prediction: Prediction


def ranks(asked: Asked) -> list[Found]:
    """Return the config over ranks; and where a server could be several, or none, what that would be."""
    return [Found(name, asked.job.predict(way)) for n in asked.ranks for name, way in _curves(asked, n)]


def _curves(asked: Asked, n: int) -> Iterator[tuple[str, Way]]:
    own = asked.at(n)
    yield f"{_curve(own)} (the config)", own
    for way in others(asked, n):
        if way != own:
            yield _curve(way), way


def _curve(way: Way) -> str:
    """Return the same name for what is the same on one node and on many."""
    memory = way.collective in ("shared", "hierarchical")
    servers = ", a server a node" if way.n_servers == way.nodes > 1 else ""
    return f"{way.mode}{servers} over {'shared memory' if memory else way.collective}{way.encoded}"


def others(asked: Asked, n: int) -> Iterator[Way]:
    """Yield what else a user would look at on ``n`` ranks: servers, one and several, and none."""
    if n == 1:
        return
    nodes = asked.at(n).nodes
    fast = "shared" if nodes == 1 else "hierarchical"
    server = {"mode": "sync_ps", "server": "dedicated"}
    for collective in dict.fromkeys((fast, "buffer")):
        yield asked.at(n, **server, n_servers=1, collective=collective)
        yield asked.at(n, mode="allreduce", server=None, n_servers=1, collective=collective)
    if nodes > 1:
        k = min(nodes, n - 1)
        yield asked.at(n, **server, n_servers=k, collective="buffer")


def varied(asked: Asked, said: str) -> list[Found]:
    """Return predictions with one key at each of several values, over ranks. UserError for another key."""
    key, equals, values = said.partition("=")
    every = parse_value(f"[{values}]") if equals else []
    if key not in KEYS or not isinstance(every, list) or not every:
        raise UserError(f"--what-if must be KEY=VALUE,VALUE, got {said!r}; {nearest(key, KEYS)}")
    found = []
    for value, n in product(every, asked.ranks):
        job, other = _changed(asked, key, value)
        found.append(Found(f"{key}={value}", job.predict(asked.at(n, **other))))
    return found


def _changed(asked: Asked, key: str, value: Any) -> tuple[Job, dict[str, Any]]:
    job = asked.job
    if key == "batch_size":
        if type(value) is not int or not 1 <= value <= 2**31:
            raise UserError(f"--what-if batch_size must be 1 or more, got {value!r}; give a whole number")
        return replace(job, work=resized(job.work, value)), {}
    if key in FIGURES:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 1e-6 <= value <= 1e9 or (key == "cores" and value % 1):
            raise UserError(f"--what-if {key} must be a positive number, cores a whole one, got {value!r}; give one")
        return replace(job, machine=_with(job.machine, key, value), here=False), {}
    if key == "link":
        value = str(value)
        machine.link(value)
    valid = VALID.get(key)
    if valid is not None and value not in valid:
        raise UserError(
            f"--what-if {key} must be one of {', '.join(map(str, valid))}, got {value!r}; give one of these"
        )
    if key in ("server", "n_servers") and asked.way["mode"] != "sync_ps":
        raise UserError(
            f"--what-if {key} counts under sync.mode sync_ps, got {asked.way['mode']}; give sync.mode=sync_ps"
        )
    if key in ("n_servers", "threads", "per_node") and (type(value) is not int or value < 1):
        raise UserError(f"--what-if {key} must be 1 or more, got {value!r}; give a whole number")
    if key == "mode":
        return job, {"mode": value, "server": asked.way["server"] or "dedicated" if value == "sync_ps" else None}
    return job, {key: value}


VALID: dict[str, tuple[str, ...]] = {
    "collective": ("shared", "hierarchical", "buffer", "object", "null"),
    "mode": ("sync_ps", "allreduce"),
    "server": ("dedicated", "colocated"),
    "reproducible": ("none", "fixed_workers"),
}


def _with(of: Machine, key: str, value: float) -> Machine:
    plain = msgspec.to_builtins(of) | {key: msgspec.to_builtins(Figure(float(value), "--what-if")), "exchanges": []}
    changed: Machine = msgspec.convert(plain, Machine)
    return changed


def resized(work: Work, batch: int) -> Work:
    """Return the work with another batch size, along the line through the two that were measured."""
    scale = batch / work.batches[0]

    def at(seconds: tuple[float, float]) -> tuple[float, float]:
        fixed, each = line(work.batches, seconds)
        return fixed + each * batch, seconds[1]

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
    found: dict[Any, Prediction] = {}
    for n in _powers(cores):
        for threads in _powers(max(1, cores // n)):
            for tier in asked.job.machine.tiers:
                per_node = max(1, asked.per_node // threads)
                for way in others(replace(asked, per_node=per_node), n):
                    way = replace(way, threads=threads, tier=tier)
                    found[way] = asked.job.predict(way)
    ranked = sorted(found.values(), key=lambda p: (bool(p.notes), p.epoch_s))
    return [Found(f"{p.way.name}, {p.way.tier}", p) for p in ranked[:TOP]]


def _powers(most: int) -> list[int]:
    found = [1 << i for i in range(most.bit_length()) if 1 << i <= most]
    return found if found[-1] == most else [*found, most]
