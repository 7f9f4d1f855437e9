"""From a config to a plan that has been judged: on as few ranks as can, before anything costs time."""

import importlib
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec
from mpi4py import MPI

from psframe import __version__, affinity, alike, blocks, collectives, config, optim, registry, startup, sync
from psframe.cluster import Cluster
from psframe.config import Config, Fault, Train
from psframe.data import Facts
from psframe.datasets import TABLE as DATASETS
from psframe.errors import UserError, reason
from psframe.fault import Crash
from psframe.group import Group, divide, undivided
from psframe.memory import placement, topology
from psframe.memory.allocator import ROLES
from psframe.memory.places import Places
from psframe.memory.site import Site
from psframe.memory.sysfs import spell
from psframe.models import TABLE as MODELS
from psframe.nn.jit import compiling
from psframe.nn.network import Network
from psframe.parallel import cut
from psframe.parallel import grid as grids
from psframe.parallel.grid import Grid
from psframe.parallel.pipeline import micro, micro_batches
from psframe.registry import Choice, Table
from psframe.sync.base import Mode
from psframe.team import Team

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

#: what a member is given beside its keys: input shape and classes; team, size, allocator and reproducible
N_GIVEN = {"model": 2, "dataset": 0, "optimizer": 0, "sync": 0, "collective": 4}


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
    team : Team
        Of the ranks that exchange gradients: of all, or of those of this rank's stage.
    grid : Grid
    cuts : list of int
        Where the stages begin among the layers that run, and the end; empty without a pipeline.
    n_micro : int
        Micro-batches of a step.
    """

    config: Config
    choices: dict[str, Choice]
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
        """Which layers that run are this rank's."""
        return slice(*self.cuts[self.grid.stage : self.grid.stage + 2]) if self.cuts else slice(None)


def make(cluster: Cluster, path: str, overrides: Sequence[str]) -> Plan:
    """Read and judge a config and the dataset it names; where it cannot be run, an AgreedError on every rank.

    All ranks must call.
    """
    alike.judge_code(cluster)
    collective = "shared" if cluster.n_nodes == 1 else "hierarchical"
    judged = cluster.agree(lambda: _judge_config(path, overrides, collective))
    resolved = judged["resolved"]
    settings = msgspec.convert(resolved, Config)
    cluster.agree_everywhere(lambda: _judge_record(resolved["record"], cluster.rank))
    # a rank that cannot import a user's own module, or what one needs, says so here
    choices = cluster.agree_everywhere(lambda: {s: _choice(resolved, s) for s in ("dataset", "sync")})
    kept: list[Dataset] = []
    facts = Facts(**cluster.agree_by_node(lambda: _judge_dataset(choices["dataset"], kept)))
    cluster.agree_everywhere(lambda: _judge_nodes(cluster, facts))
    mode = cluster.agree_everywhere(lambda: sync.make(choices["sync"]))
    grid, team, group = _roles(cluster, settings, mode, choices["sync"].name, facts)
    later = ("model", "optimizer", "collective", *PLACES.values())
    choices |= cluster.agree_everywhere(lambda: {s: _choice(resolved, s) for s in later})
    cluster.agree(lambda: _judge_blocks(settings.train, team, mode, choices))
    places = _places(cluster, settings, choices)
    _configure(cluster, group, mode, affinity.n_cores(cluster, places.site.topology))
    sampler = blocks.sampler(facts.n_train, team.n_workers, settings.train)
    made = Plan(
        config=settings,
        choices=choices,
        places=places,
        team=team,
        group=group,
        facts=facts,
        dataset=kept[0] if kept else None,
        resolved=resolved,
        unused=judged["unused"] + ([] if mode.exchanges else ["collective"]) + blocks.unused(settings.train),
        grid=grid,
        n_micro=micro_batches(settings.parallel, sampler),
    )
    if grid.is_cut:
        made.cuts = cluster.agree(lambda: _cuts(made, micro(sampler, made.n_micro)))
    return made


def _roles(cluster: Cluster, settings: Config, mode: Mode, name: str, facts: Facts) -> tuple[Grid, Team, Group]:
    """Return who does what; AgreedError on every rank where these ranks cannot do what is asked for."""
    cluster.agree(lambda: grids.judge(settings, cluster.n_ranks, mode.server, mode.n_servers))
    grid = grids.make(cluster, settings.parallel)
    team = _team(grid.cluster, mode)
    cluster.agree(lambda: _judge_size(team, facts))
    alone = team.comm.size == 1
    if not alone and settings.fault.on_worker_loss == "continue":
        cluster.agree(lambda: _judge_loss(name, mode))
    whole = alone or mode.group_size is None
    group = undivided(grid.cluster, team, grid.is_cut) if whole else divide(cluster, mode.group_size)
    if not alone:
        cluster.agree_everywhere(lambda: mode.judge(team, group))
    workers = tuple(range(cluster.n_ranks)) if grid.is_cut else team.workers
    cluster.agree(lambda: _judge_fault(settings.fault, workers))
    return grid, team, group


def regrouped(plan: Plan, cluster: Cluster) -> Plan:
    """Return the plan for the ranks that are left of those it was made for. All of them must call."""
    mode = sync.make(plan.choices["sync"])
    team = _team(cluster, mode)
    group = undivided(cluster, team)
    _configure(cluster, group, mode, affinity.n_cores(cluster, plan.places.site.topology))
    if cluster.n_ranks > 1:
        cluster.agree_everywhere(lambda: mode.judge(team, group))
    return replace(plan, team=team, group=group, grid=grids.make(cluster, plan.config.parallel))


def _cuts(plan: Plan, n_samples: int) -> list[int]:
    """Return where the network is best cut, by what its layers take on this rank for a micro-batch."""
    shape, n_classes = plan.facts.input_shape, plan.facts.n_classes

    def make(own: slice) -> Network:
        return Network(plan.choices["model"](shape, n_classes), shape, n_classes, own)

    cut.judge(make(slice(None)), plan.grid.n_stages)
    kernels = plan.config.nn.kernels
    with compiling(kernels):
        return cut.found(make, plan.grid.n_stages, n_samples, kernels)


def _team(cluster: Cluster, mode: Mode) -> Team:
    return Team(cluster.comm, mode.server if cluster.n_ranks > 1 else None, cluster, n_servers=mode.n_servers)


def _configure(cluster: Cluster, group: Group, mode: Mode, n_cores: int) -> None:
    """Say how the ranks of a node wait for each other, and those of a group of it."""
    cluster.rendezvous.configure(mode.wait, mode.deadline_s, n_cores)
    if group.cluster is not cluster:
        here = cluster.sizes[cluster.node]
        wait = mode.wait if mode.wait != "auto" or n_cores >= here else "block"
        group.cluster.rendezvous.configure(wait, mode.deadline_s, max(1, n_cores * group.cluster.n_ranks // here))


def _choice(resolved: dict[str, Any], section: str) -> Choice:
    spec = resolved
    for key in section.split("."):
        spec = spec[key]
    choice = registry.bind(section, TABLES[section], spec, config.STRATEGIES.get(section, "name"))
    return choice.taking(N_GIVEN[section]) if section in N_GIVEN else choice


def _places(cluster: Cluster, settings: Config, choices: dict[str, Choice]) -> Places:
    """Bind this rank to its cores and say where its memory will lie. All ranks must call."""
    machine = cluster.agree_everywhere(lambda: topology.read("/", settings.placement.hbw_nodes))
    cpus, denied = affinity.pin(cluster, machine, settings.affinity)
    site = Site(machine, cpus, [denied] if denied else [])
    asked = {role: choices[place] for role, place in PLACES.items()}
    return cluster.agree_everywhere(lambda: Places(site, asked, settings.placement.fallback))


def _judge_config(path: str, overrides: Sequence[str], collective: str) -> dict[str, Any]:
    resolved = msgspec.to_builtins(config.read(path, overrides, collective))
    unused = []
    for section in TABLES:
        choice = _choice(resolved, section)
        *above, last = section.split(".")
        at = resolved[above[0]] if above else resolved
        at[last] = {config.STRATEGIES.get(section, "name"): choice.name, **choice.arguments}
        unused += [f"{section}.{name}" for name in choice.unused]
    packages = {name: version(name) for name in ("numpy", "numba")}
    resolved["versions"] = {"psframe": __version__, "python": platform.python_version(), "mpi": _mpi(), **packages}
    return {"resolved": resolved, "unused": unused}


def _mpi() -> str:
    return str(MPI.Get_library_version().replace("\0", "").splitlines()[0].strip())


def _judge_record(asked: dict[str, Any], rank: int) -> None:
    """UserError where a package is missing on this rank that the run's record needs."""
    for key, package in (("usage", "psutil"), *([("tensorboard", "tensorboardX")] if rank == 0 else [])):
        if asked[key]:
            try:
                importlib.import_module(package)
            except Exception as error:  # one that does not fit another package raises what it likes
                raise UserError(
                    f"record.{key} must have the package {package}, got none that can be imported ({reason(error)}); "
                    f"pip install {package}, or give record.{key}=false"
                ) from None


def _judge_dataset(choice: Choice, kept: "list[Dataset]") -> dict[str, Any]:
    kept.append(choice())
    return Facts.of(kept[0]).to_plain()


def _judge_nodes(cluster: Cluster, facts: Facts) -> None:
    first = cluster.comm.bcast(facts)
    if facts != first:
        raise UserError(
            f"all nodes must see one dataset, got {facts} on node {cluster.node}, {first} on node 0; copy it"
        )


def _judge_fault(fault: Fault, workers: tuple[int, ...]) -> None:
    Crash(fault.crash_at)
    slow_rank = fault.slow_rank
    if isinstance(slow_rank, int) and slow_rank not in workers:
        raise UserError(
            f"fault.slow_rank must be a worker's rank, {spell(workers)}, got {slow_rank}; give one of these, or none"
        )


def _judge_loss(name: str, mode: Mode) -> None:
    """UserError where no rank could go on without another one."""
    otherwise = "give fault.on_worker_loss=stop, and let `python -m psframe.run --restarts K` start the job again"
    if not startup.tolerant():
        raise UserError(
            "fault.on_worker_loss: continue must have an Open MPI whose mpirun was given --with-ft ulfm, got "
            f"{' '.join(_mpi().split(',')[0].split())} without; start it so, or {otherwise}"
        )
    if not mode.survives:
        raise UserError(
            "fault.on_worker_loss: continue must have a sync.mode that can do without a rank (sync_ps with one server, "
            f"allreduce, async_ps, easgd, hogwild, local_sgd, block_momentum), got {name}; {otherwise}"
        )


def _judge_blocks(train: Train, team: Team, mode: Mode, choices: dict[str, Choice]) -> None:
    blocks.judge(train, team.n_workers)
    if train.reproducible == "any_workers":
        sums, collective = mode.any_workers, choices["collective"]
        ordered = getattr(collective.make, "any_workers", False)
        blocks.judge_parts(choices["sync"].name, sums, collective.name, collective.arguments, ordered)


def _judge_size(team: Team, facts: Facts) -> None:
    if team.n_workers > facts.n_train:
        raise UserError(
            f"there must be at least as many training samples as workers, got {facts.n_train} samples for "
            f"{team.n_workers} workers; start fewer ranks or give more samples"
        )
