"""Sections of a config with the strategies that they name: :func:`resolve` checks all, :func:`choice` returns one."""

from collections.abc import Sequence
from typing import Any

import msgspec

from psframe import collectives, optim, sync
from psframe.config import registry, schema
from psframe.config.placement_spec import ROLES
from psframe.config.registry import Choice, Table
from psframe.config.schema import Source
from psframe.datasets import TABLE as DATASETS
from psframe.errors import UserError
from psframe.memory import placement
from psframe.models import TABLE as MODELS
from psframe.nn import metrics
from psframe.nn.metrics.meter import Metrics

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

METRICS = "record.metrics"

#: positional arguments of a member: (input shape, n_classes); (team, size, allocator, reproducible)
N_GIVEN = {"model": 2, "dataset": 0, "optimizer": 0, "sync": 0, "collective": 4}


def resolve(source: Source, overrides: Sequence[str], collective: str) -> tuple[dict[str, Any], list[str]]:
    """Return a config with every default, as plain values, and the keys that its strategies do not use.

    ``collective`` is the default. Raises UserError for what is no config, or names no strategy.
    """
    resolved = msgspec.to_builtins(schema.read(source, overrides, collective))
    unused = []
    for section in TABLES:
        chosen = choice(resolved, section)
        *above, last = section.split(".")
        parent = resolved[above[0]] if above else resolved
        parent[last] = {schema.STRATEGIES.get(section, "name"): chosen.name, **chosen.keys}
        unused += [f"{section}.{name}" for name in chosen.unused]
    measured = metrics.choose(resolved["record"]["metrics"], METRICS)
    resolved["record"]["metrics"] = [{"name": chosen.name, **chosen.keys} for chosen in measured]
    unused += [f"{chosen.section}.{name}" for chosen in measured for name in chosen.unused]
    return resolved, unused


def metrics_of(specs: Sequence[metrics.Spec], n_classes: int) -> Metrics:
    """Return the metrics of ``record.metrics`` by label; UserError if one is invalid, or not for so many classes."""
    return metrics.make(metrics.choose(specs, METRICS), n_classes)


def choice(resolved: dict[str, Any], section: str) -> Choice:
    """Return the strategy of a section, as ``sync`` or ``placement.data``; UserError if it or a key is invalid."""
    spec = resolved
    for key in section.split("."):
        spec = spec[key]
    key = schema.STRATEGIES.get(section, "name")
    chosen = registry.bind(section, TABLES[section], spec, key, sync.Common if section == "sync" else None)
    if section == "model" and _is_module(chosen.make):
        raise UserError(
            f"model: {chosen.name!r} is a torch.nn.Module, got without torch; give model={{name: torch, build: "
            f"'{chosen.name}'}}"
        )
    return chosen.taking(N_GIVEN[section]) if section in N_GIVEN else chosen


def _is_module(made: Any) -> bool:
    """Return True for a class of ``torch.nn.Module``, or one of its objects."""
    owner = made if isinstance(made, type) else type(made)
    return any(base.__module__ == "torch.nn.modules.module" for base in owner.__mro__)
