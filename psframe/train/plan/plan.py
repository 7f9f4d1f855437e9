"""Plan of a run (:func:`make`): a config, checked on as few ranks as possible before any costly work."""

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec

from psframe import __version__, collectives, optim, sync
from psframe.cluster import affinity, consistency
from psframe.cluster.cluster import Cluster
from psframe.cluster.groups import Group
from psframe.cluster.roles import Team
from psframe.config import registry, schema
from psframe.config.placement_spec import ROLES
from psframe.config.registry import Choice, Table
from psframe.config.schema import Config
from psframe.datasets import TABLE as DATASETS
from psframe.memory import placement, topology
from psframe.memory.process_site import Site
from psframe.memory.role_placement import Places
from psframe.models import TABLE as MODELS
from psframe.nn.conv import Conv2d
from psframe.nn.dense import Dense
from psframe.nn.jit import compiling
from psframe.nn.network import Network
from psframe.sync.base import Mode
from psframe.sync.binding import roles
from psframe.train.compute import any_workers
from psframe.train.compute.parallel import cut, hybrid
from psframe.train.compute.parallel import grid as grids
from psframe.train.compute.parallel.grid import Grid
from psframe.train.compute.parallel.pipeline import micro, micro_batches
from psframe.train.compute.parallel.split import check as check_split
from psframe.train.compute.parallel.split import split
from psframe.train.data.dataset import Facts
from psframe.train.plan import checks, combinations
from psframe.train.plan.combinations import Combination
from psframe.train.plan.optimizer_trial import check as check_optimizer

if TYPE_CHECKING:
    from psframe.datasets.base import Dataset

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


@dataclass
class Plan:
    """Plan of a run: a checked config with its choices, roles and dataset.

    It is the same on every rank, except ``dataset`` (on each node's first rank), ``places``, ``team``, ``group`` and
    ``grid``.

    Attributes
    ----------
    choices : dict of str to Choice
        Chosen member of each family, by its config key.
    asked : Combination
        Combination of options that passed the checks.
    places : Places
        Placement of this rank's memory, by role.
    resolved : dict
        Full config with every default, as config.yaml records it.
    unused : list of str
        Keys that the chosen members do not use.
    team : Team
        Team of the ranks that exchange gradients: all, or those with this rank's part of the network.
    grid : Grid
    cuts : list of int
        Begin of each stage among the active layers, and the end; empty without a pipeline.
    n_micro : int
        Micro-batches of a step.
    """

    config: Config
    choices: dict[str, Choice]
    asked: Combination
    places: Places
    team: Team
    group: Group
    facts: Facts
    dataset: "Dataset | None"
    resolved: dict[str, Any]
    unused: list[str]
    grid: Grid
    n_micro: int
    cuts: list[int] = field(default_factory=list)

    @property
    def own(self) -> slice:
        """Slice of the active layers that this rank runs."""
        return slice(*self.cuts[self.grid.stage : self.grid.stage + 2]) if self.cuts else slice(None)

    def part(self) -> Network:
        """Return this rank's part of the network, without memory."""
        return self.network(self.own, self.grid.shard)

    def network(self, own: slice = slice(None), shard: int | None = None) -> Network:
        """Return the network, or a stage or shard of it, without memory; UserError if it does not fit the data."""
        layers = self.choices["model"](self.facts.input_shape, self.facts.n_classes)
        if shard is not None:
            kinds = (Dense, Conv2d) if self.config.parallel.convolutions == "model" else (Dense,)
            layers = split(layers, self.grid.n_shards, shard, kinds)
        return Network(layers, self.facts.input_shape, self.facts.n_classes, own)


def make(cluster: Cluster, source: str | Mapping[str, Any], overrides: Sequence[str]) -> Plan:
    """Read a config, a file's path or its content, check it and its dataset, and return the plan. All ranks must call.

    Raises
    ------
    AgreedError
        On every rank, if these ranks cannot run the config.
    """
    checked, settings = _config(cluster, source, overrides)
    resolved = checked["resolved"]
    # a rank that cannot import a user's own module raises here
    choices = cluster.run_on_all(lambda: {s: _choice(resolved, s) for s in ("dataset", "sync")})
    datasets: list[Dataset] = []
    facts = Facts(**cluster.run_on_nodes(lambda: _check_dataset(choices["dataset"], datasets)))
    cluster.run_on_all(lambda: checks.check_nodes(cluster, facts))
    mode = cluster.run_on_all(lambda: sync.make(choices["sync"]))
    cluster.run_on_root(lambda: grids.check(settings.parallel, cluster.n_ranks))
    alone = cluster.n_ranks == settings.parallel.pipeline * settings.parallel.model
    combination = _goes_together(cluster, Combination(choices["sync"].name, mode.traits, settings, alone=alone))
    grid, team, group = _roles(cluster, settings, mode, facts)
    later_sections = ("model", "optimizer", "collective", *PLACES.values())
    choices |= cluster.run_on_all(lambda: {s: _choice(resolved, s) for s in later_sections})
    cluster.run_on_all(lambda: check_optimizer(choices["optimizer"], settings.train.reproducible))
    cluster.run_on_root(lambda: any_workers.check(settings.train, team.n_workers))
    # again, for the rules that need the collective
    combination = _goes_together(cluster, replace(combination, collective=choices["collective"]))
    places = _places(cluster, settings, choices)
    _configure(cluster, group, grid, choices["sync"], affinity.n_cores(cluster, places.site.topology))
    sampler = any_workers.sampler(facts.n_train, team.n_workers, settings.train)
    plan = Plan(
        config=settings,
        choices=choices,
        asked=combination,
        places=places,
        team=team,
        group=group,
        facts=facts,
        dataset=datasets[0] if datasets else None,
        resolved=resolved,
        unused=[*checked["unused"], *["collective"] * (not mode.traits.exchanges), *any_workers.unused(settings.train)],
        grid=grid,
        n_micro=micro_batches(settings.parallel, sampler),
    )
    if settings.parallel.is_cut:
        plan.cuts = cluster.run_on_root(lambda: _cuts(plan, micro(sampler, plan.n_micro)))
    return plan


def _config(
    cluster: Cluster, source: str | Mapping[str, Any], overrides: Sequence[str]
) -> tuple[dict[str, Any], Config]:
    """Return the result of :func:`_check_config`, and the config; the same on all ranks."""
    consistency.check_code(cluster)
    collective = "shared" if cluster.n_nodes == 1 else "hierarchical"
    checked = cluster.run_on_root(lambda: _check_config(source, overrides, collective))
    record = checked["resolved"]["record"]
    cluster.run_on_all(lambda: checks.check_record(record, cluster.rank))
    return checked, msgspec.convert(checked["resolved"], Config)


def _goes_together(cluster: Cluster, asked: Combination) -> Combination:
    cluster.run_on_root(lambda: combinations.check(asked))
    return asked


def _roles(cluster: Cluster, settings: Config, mode: Mode, facts: Facts) -> tuple[Grid, Team, Group]:
    """Return this rank's grid, team and group; AgreedError on every rank if the config does not fit the ranks."""
    grid = grids.make(cluster, settings.parallel)
    team, group = roles(grid.cluster, mode.traits, settings.parallel.is_cut)
    cluster.run_on_root(lambda: checks.check_size(team, facts))
    alone = team.comm.size == 1
    if not alone and settings.fault.on_worker_loss == "continue":
        cluster.run_on_root(checks.check_loss)
    if not alone:
        cluster.run_on_all(lambda: mode.check(team, group))
    workers = tuple(range(cluster.n_ranks)) if settings.parallel.is_cut else team.workers
    cluster.run_on_root(lambda: checks.check_fault(settings.fault, workers))
    return grid, team, group


def regrouped(plan: Plan, cluster: Cluster) -> Plan:
    """Return the plan for the surviving ranks of ``cluster``. All survivors must call."""
    mode = sync.make(plan.choices["sync"])
    team, group = roles(cluster, mode.traits)
    grid = grids.make(cluster, plan.config.parallel)
    _configure(cluster, group, grid, plan.choices["sync"], affinity.n_cores(cluster, plan.places.site.topology))
    if cluster.n_ranks > 1:
        cluster.run_on_all(lambda: mode.check(team, group))
    return replace(plan, team=team, group=group, grid=grid)


def _cuts(plan: Plan, n_samples: int) -> list[int]:
    """Return the best cuts into stages, by the seconds of each layer on this rank for a micro-batch; [] for one stage.

    Raises UserError if there are fewer layers than stages, or no layer can be split into shards.
    """
    if plan.grid.n_shards > 1:
        shard = plan.network(shard=0)
        check_split(shard, plan.grid.n_shards)
        if plan.config.parallel.convolutions == "data":
            hybrid.place(shard)
    if plan.grid.n_stages == 1:
        return []
    kernels = plan.config.nn.kernels
    with compiling(kernels):
        return cut.found(plan.network, plan.grid.n_stages, n_samples, kernels)


def _configure(cluster: Cluster, group: Group, grid: Grid, choice: Choice, n_cores: int) -> None:
    """Configure the waits between the ranks of a node, and of a group or crew within it."""
    waits = sync.Waits(**choice.common)
    cluster.rendezvous.configure(waits.wait, waits.deadline_s, n_cores)
    node_size = cluster.sizes[cluster.node]
    for subcluster in (group.cluster, grid.crew):
        if subcluster is not cluster:
            wait = waits.wait if waits.wait != "auto" or n_cores >= node_size else "block"
            subcluster.rendezvous.configure(wait, waits.deadline_s, max(1, n_cores * subcluster.n_ranks // node_size))


def _choice(resolved: dict[str, Any], section: str) -> Choice:
    spec = resolved
    for key in section.split("."):
        spec = spec[key]
    key = schema.STRATEGIES.get(section, "name")
    choice = registry.bind(section, TABLES[section], spec, key, sync.Waits if section == "sync" else None)
    return choice.taking(N_GIVEN[section]) if section in N_GIVEN else choice


def _places(cluster: Cluster, settings: Config, choices: dict[str, Choice]) -> Places:
    """Pin this rank to its cores, and return the placement of its memory. All ranks must call."""
    machine = cluster.run_on_all(lambda: topology.read("/", settings.placement.hbw_nodes))
    cpus, denied = affinity.pin(cluster, machine, settings.affinity)
    site = Site(machine, cpus, [denied] if denied else [])
    placements = {role: choices[place] for role, place in PLACES.items()}
    return cluster.run_on_all(lambda: Places(site, placements, settings.placement.fallback))


def _check_config(source: str | Mapping[str, Any], overrides: Sequence[str], collective: str) -> dict[str, Any]:
    resolved = msgspec.to_builtins(schema.read(source, overrides, collective))
    unused = []
    for section in TABLES:
        choice = _choice(resolved, section)
        *above, last = section.split(".")
        parent = resolved[above[0]] if above else resolved
        parent[last] = {schema.STRATEGIES.get(section, "name"): choice.name, **choice.keys}
        unused += [f"{section}.{name}" for name in choice.unused]
    packages = {name: version(name) for name in ("numpy", "numba")}
    resolved["versions"] = {
        "psframe": __version__,
        "python": platform.python_version(),
        "mpi": checks.mpi_version(),
        **packages,
    }
    return {"resolved": resolved, "unused": unused}


def _check_dataset(choice: Choice, kept: "list[Dataset]") -> dict[str, Any]:
    kept.append(choice())
    return Facts.of(kept[0]).to_plain()
