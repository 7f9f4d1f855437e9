"""From a config to a plan that has been judged: on as few ranks as can, before anything costs time."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec
from mpi4py import MPI

from psframe import __version__, affinity, collectives, config, optim, registry, sync
from psframe.cluster import Cluster, Team
from psframe.config import Config
from psframe.data import Facts
from psframe.datasets import TABLE as DATASETS
from psframe.errors import UserError
from psframe.memory import placement, topology
from psframe.memory.allocator import ROLES
from psframe.memory.places import Places
from psframe.memory.site import Site
from psframe.models import TABLE as MODELS
from psframe.registry import Choice, Table

if TYPE_CHECKING:
    from psframe.datasets.base import Dataset

#: the placement of each role, by its place in the config
PLACES = {role: f"placement.{role}" for role in ROLES}

#: the families, by the place in the config that names their members
TABLES: dict[str, Table] = {
    "model": MODELS,
    "dataset": DATASETS,
    "optimizer": optim.TABLE,
    "sync": sync.TABLE,
    "collective": collectives.TABLE,
    **dict.fromkeys(PLACES.values(), placement.TABLE),
}


@dataclass
class Plan:
    """The same on every rank, but for ``dataset``, which each node's first rank has, and ``places``.

    Attributes
    ----------
    choices : dict of str to Choice
        The chosen member of each family, by its place in the config.
    places : Places
        Where this rank's memory will lie.
    resolved : dict
        The whole config with every default, as config.yaml records it.
    unused : list of str
        Keys that what was chosen does not use.
    """

    config: Config
    choices: dict[str, Choice]
    places: Places
    team: Team
    facts: Facts
    dataset: "Dataset | None"
    resolved: dict[str, Any]
    unused: list[str]


def make(cluster: Cluster, path: str, overrides: Sequence[str]) -> Plan:
    """Read and judge a config and the dataset it names; where it cannot be run, an AgreedError on every rank.

    All ranks must call.
    """
    judged = cluster.agree(lambda: _judge_config(path, overrides))
    resolved = judged["resolved"]
    # a rank that cannot import a user's own module, or what one needs, says so here
    choices = cluster.agree_everywhere(lambda: {s: _choice(resolved, s) for s in ("dataset", "sync")})
    kept: list[Dataset] = []
    facts = Facts(**cluster.agree_by_node(lambda: _judge_dataset(choices["dataset"], kept)))
    cluster.agree_everywhere(lambda: _judge_nodes(cluster, facts))
    team = Team(cluster.comm, choices["sync"]().server if cluster.n_ranks > 1 else None)
    cluster.agree(lambda: _judge_size(team, facts))
    later = ("model", "optimizer", "collective", *PLACES.values())
    choices |= cluster.agree_everywhere(lambda: {s: _choice(resolved, s) for s in later})
    judged_config = msgspec.convert(resolved, Config)
    return Plan(
        config=judged_config,
        choices=choices,
        places=_places(cluster, judged_config, choices),
        team=team,
        facts=facts,
        dataset=kept[0] if kept else None,
        resolved=resolved,
        unused=judged["unused"],
    )


def _choice(resolved: dict[str, Any], section: str) -> Choice:
    spec = resolved
    for key in section.split("."):
        spec = spec[key]
    return registry.bind(section, TABLES[section], spec, config.STRATEGIES.get(section, "name"))


def _places(cluster: Cluster, settings: Config, choices: dict[str, Choice]) -> Places:
    """Bind this rank to its cores and say where its memory will lie. All ranks must call."""
    machine = cluster.agree_everywhere(lambda: topology.read("/", settings.placement.hbw_nodes))
    cpus, denied = affinity.pin(cluster, machine, settings.affinity)
    site = Site(machine, cpus, [denied] if denied else [])
    asked = {role: choices[place] for role, place in PLACES.items()}
    return cluster.agree_everywhere(lambda: Places(site, asked, settings.placement.fallback))


def _judge_config(path: str, overrides: Sequence[str]) -> dict[str, Any]:
    resolved = msgspec.to_builtins(config.read(path, overrides))
    unused = []
    for section in TABLES:
        choice = _choice(resolved, section)
        *above, last = section.split(".")
        at = resolved[above[0]] if above else resolved
        at[last] = {config.STRATEGIES.get(section, "name"): choice.name, **choice.arguments}
        unused += [f"{section}.{name}" for name in choice.unused]
    mpi = MPI.Get_library_version().replace("\0", "").splitlines()[0].strip()
    packages = {name: version(name) for name in ("numpy", "numba")}
    resolved["versions"] = {"psframe": __version__, "python": platform.python_version(), "mpi": mpi, **packages}
    return {"resolved": resolved, "unused": unused}


def _judge_dataset(choice: Choice, kept: "list[Dataset]") -> dict[str, Any]:
    kept.append(choice())
    return Facts.of(kept[0]).to_plain()


def _judge_nodes(cluster: Cluster, facts: Facts) -> None:
    first = cluster.comm.bcast(facts)
    if facts != first:
        raise UserError(
            f"all nodes must see one dataset, got {facts} on node {cluster.node}, {first} on node 0; copy it"
        )


def _judge_size(team: Team, facts: Facts) -> None:
    if team.n_workers > facts.n_train:
        raise UserError(
            f"there must be at least as many training samples as workers, got {facts.n_train} samples for "
            f"{team.n_workers} workers; start fewer ranks or give more samples"
        )
