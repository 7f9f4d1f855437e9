"""Plan of a run (:func:`make`): a config, checked on as few ranks as possible before any costly work."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec

from psframe import __version__, sync
from psframe.cluster import affinity, consistency
from psframe.cluster.cluster import Cluster
from psframe.cluster.groups import Group
from psframe.cluster.roles import Team
from psframe.config.registry import Choice
from psframe.config.schema import Config
from psframe.memory import topology
from psframe.memory.process_site import Site
from psframe.memory.role_placement import Places
from psframe.nn.jit import compiling
from psframe.nn.network import Network
from psframe.sync.base import Mode
from psframe.sync.binding import roles
from psframe.train.compute import any_workers
from psframe.train.compute.parallel import cut
from psframe.train.compute.parallel import grid as grids
from psframe.train.compute.parallel.grid import Grid
from psframe.train.compute.parallel.pipeline import micro, micro_batches
from psframe.train.data.dataset import Facts
from psframe.train.plan import checks, combinations, sections
from psframe.train.plan.combinations import Combination
from psframe.train.plan.optimizer_trial import check as check_optimizer

if TYPE_CHECKING:
    from psframe.datasets.base import Dataset


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
        return sections.network(self.choices["model"], self.facts, self.config.parallel, own, shard)


def make(cluster: Cluster, path: str, overrides: Sequence[str]) -> Plan:
    """Read a config, check it and its dataset, and return the plan. All ranks must call.

    Raises
    ------
    AgreedError
        On every rank, if these ranks cannot run the config.
    """
    checked, settings = _config(cluster, path, overrides)
    resolved = checked["resolved"]
    # a rank that cannot import a user's own module raises here
    choices = cluster.run_on_all(lambda: {s: sections.choice(resolved, s) for s in ("dataset", "sync")})
    datasets: list[Dataset] = []
    facts = Facts(**cluster.run_on_nodes(lambda: _check_dataset(choices["dataset"], datasets)))
    cluster.run_on_all(lambda: checks.check_nodes(cluster, facts))
    mode = cluster.run_on_all(lambda: sync.make(choices["sync"]))
    cluster.run_on_root(lambda: grids.check(settings.parallel, cluster.n_ranks))
    alone = cluster.n_ranks == settings.parallel.pipeline * settings.parallel.model
    combination = _goes_together(cluster, Combination(choices["sync"].name, mode.traits, settings, alone=alone))
    grid, team, group = _roles(cluster, settings, mode, facts)
    later_sections = ("model", "optimizer", "collective", *sections.PLACES.values())
    choices |= cluster.run_on_all(lambda: {s: sections.choice(resolved, s) for s in later_sections})
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
        unused=checks.all_unused(checked["unused"], mode.traits, settings.train),
        grid=grid,
        n_micro=micro_batches(settings.parallel, sampler),
    )
    if settings.parallel.is_cut:
        plan.cuts = cluster.run_on_root(lambda: _cuts(plan, micro(sampler, plan.n_micro)))
    return plan


def _config(cluster: Cluster, path: str, overrides: Sequence[str]) -> tuple[dict[str, Any], Config]:
    """Return the result of :func:`_check_config`, and the config; the same on all ranks."""
    consistency.check_code(cluster)
    collective = "shared" if cluster.n_nodes == 1 else "hierarchical"
    checked = cluster.run_on_root(lambda: _check_config(path, overrides, collective))
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
    cluster.run_on_root(lambda: checks.check_size(team.n_workers, facts))
    alone = team.comm.size == 1
    if not alone and settings.fault.on_worker_loss == "continue":
        cluster.run_on_root(checks.check_loss)
    if not alone:
        cluster.run_on_all(lambda: mode.check(team.roles))
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
        cluster.run_on_all(lambda: mode.check(team.roles))
    return replace(plan, team=team, group=group, grid=grid)


def _cuts(plan: Plan, n_samples: int) -> list[int]:
    """Return the best cuts into stages, by the seconds of each layer on this rank for a micro-batch; [] for one stage.

    Raises UserError if there are fewer layers than stages, or no layer can be split into shards.
    """
    sections.check_cut(plan.choices["model"], plan.facts, plan.config.parallel)
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


def _places(cluster: Cluster, settings: Config, choices: dict[str, Choice]) -> Places:
    """Pin this rank to its cores, and return the placement of its memory. All ranks must call."""
    machine = cluster.run_on_all(lambda: topology.read("/", settings.placement.hbw_nodes))
    cpus, denied = affinity.pin(cluster, machine, settings.affinity)
    site = Site(machine, cpus, [denied] if denied else [])
    placements = {role: choices[place] for role, place in sections.PLACES.items()}
    return cluster.run_on_all(lambda: Places(site, placements, settings.placement.fallback))


def _check_config(path: str, overrides: Sequence[str], collective: str) -> dict[str, Any]:
    resolved, unused = sections.resolve(path, overrides, collective)
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
