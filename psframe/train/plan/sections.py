"""Sections of a config with the strategies that they name (:func:`resolve`), and what follows without ranks."""

from collections.abc import Sequence
from typing import Any

import msgspec

from psframe import collectives, optim, sync
from psframe.config import registry, schema
from psframe.config.placement_spec import ROLES
from psframe.config.registry import Choice, Table
from psframe.config.schema import Parallel
from psframe.datasets import TABLE as DATASETS
from psframe.memory import placement
from psframe.models import TABLE as MODELS
from psframe.nn.conv import Conv2d
from psframe.nn.dense import Dense
from psframe.nn.network import Network
from psframe.train.compute.parallel import cut, hybrid
from psframe.train.compute.parallel.split import check as check_split
from psframe.train.compute.parallel.split import split
from psframe.train.data.dataset import Facts

#: config key of each role's placement
PLACES = {role: f"placement.{role}" for role in ROLES}

#: registry of each family, by the config key that selects a member
TABLES: dict[str, Table] = {
    "model": MODELS,
    "dataset": DATASETS,
    "optimizer": optim.TABLE,
    "sync": sync.TABLE,
    "collective": collectives.TABLE,
    **dict.fromkeys(PLACES.values(), placement.TABLE),
}

#: positional arguments of a member: (input shape, n_classes); (team, size, allocator, reproducible)
N_GIVEN = {"model": 2, "dataset": 0, "optimizer": 0, "sync": 0, "collective": 4}


def resolve(path: str, overrides: Sequence[str], collective: str) -> tuple[dict[str, Any], list[str]]:
    """Return a config with every default, as plain values, and the keys that its strategies do not use.

    ``collective`` is the default. Raises UserError for what is no config, or names no strategy.
    """
    resolved = msgspec.to_builtins(schema.read(path, overrides, collective))
    unused = []
    for section in TABLES:
        chosen = choice(resolved, section)
        *above, last = section.split(".")
        parent = resolved[above[0]] if above else resolved
        parent[last] = {schema.STRATEGIES.get(section, "name"): chosen.name, **chosen.keys}
        unused += [f"{section}.{name}" for name in chosen.unused]
    return resolved, unused


def choice(resolved: dict[str, Any], section: str) -> Choice:
    """Return the strategy of a section, as ``sync`` or ``placement.data``; UserError if it or a key is invalid."""
    spec = resolved
    for key in section.split("."):
        spec = spec[key]
    key = schema.STRATEGIES.get(section, "name")
    chosen = registry.bind(section, TABLES[section], spec, key, sync.Waits if section == "sync" else None)
    return chosen.taking(N_GIVEN[section]) if section in N_GIVEN else chosen


def network(
    model: Choice, facts: Facts, parallel: Parallel, own: slice = slice(None), shard: int | None = None
) -> Network:
    """Return the network, or a stage or shard of it, without memory; UserError if it does not fit the data."""
    layers = model(facts.input_shape, facts.n_classes)
    if shard is not None:
        kinds = (Dense, Conv2d) if parallel.convolutions == "model" else (Dense,)
        layers = split(layers, parallel.model, shard, kinds)
    return Network(layers, facts.input_shape, facts.n_classes, own)


def check_cut(model: Choice, facts: Facts, parallel: Parallel) -> None:
    """Raise UserError if there are fewer layers than stages, or no layer can be split into shards."""
    if parallel.model > 1:
        shard = network(model, facts, parallel, shard=0)
        check_split(shard, parallel.model)
        if parallel.convolutions == "data":
            hybrid.place(shard)
    if parallel.pipeline > 1:
        cut.check(network(model, facts, parallel), parallel.pipeline)
