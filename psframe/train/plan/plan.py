"""Plan of a run (:func:`make`): a config, checked on as few ranks as possible before any costly work."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from psframe import sync
from psframe.cluster import affinity, consistency
from psframe.cluster.cluster import Cluster
from psframe.cluster.flight.recorder import RECORDER
from psframe.cluster.groups import Group, subcluster
from psframe.cluster.roles import Team
from psframe.config.average import Average
from psframe.config.registry import Choice
from psframe.config.schema import Config, Source
from psframe.memory import topology
from psframe.memory.process_site import Site
from psframe.memory.role_placement import Places
from psframe.nn.jit import compiling
from psframe.nn.network import Network
from psframe.record.flight import COMPILE, phase
from psframe.sync.binding import roles
from psframe.train.compute import any_workers
from psframe.train.compute.meeting import Workers
from psframe.train.compute.parallel import cut
from psframe.train.compute.parallel import grid as grids
from psframe.train.compute.parallel.grid import Grid
from psframe.train.compute.parallel.pipeline import micro, micro_batches
from psframe.train.plan import checks, sections
from psframe.train.plan.judged import Judged, judge


@dataclass
class Plan(Judged):
    """Plan of a run: a judged config with this rank's memory and its roles.

    The last seven are this rank's; the others are the same on every rank.

    Attributes
    ----------
    places : Places
        Placement of this rank's memory, by role.
    team : Team
        Team of the ranks that exchange gradients: all, or those with this rank's part of the network.
    n_micro : int
        Micro-batches of a step.
    cuts : list of int
        Begin of each stage among the active layers, and the end; empty without a pipeline.
    others : Workers or None
        The workers, if samples meet those of all of them in the network; see :func:`acquaint`.
    """

    places: Places
    team: Team
    group: Group
    grid: Grid
    n_micro: int
    cuts: list[int] = field(default_factory=list)
    others: Workers | None = None

    @property
    def own(self) -> slice:
        """Slice of the active layers that this rank runs."""
        return slice(*self.cuts[self.grid.stage : self.grid.stage + 2]) if self.cuts else slice(None)

    @property
    def average(self) -> Average | None:
        """Average of the parameters to keep, if the config asks for one."""
        return self.config.average if self.config.average.name != "none" else None

    def part(self) -> Network:
        """Return this rank's part of the network, without memory."""
        return self.network(self.own, self.grid.shard)


def make(cluster: Cluster, source: Source, overrides: Sequence[str]) -> Plan:
    """Read a config, check it and its dataset, and return the plan. All ranks must call.

    Raises
    ------
    AgreedError
        On every rank, if these ranks cannot run the config.
    """
    consistency.check_code(cluster)
    judged = judge(cluster, source, overrides, partial(_heed, cluster))
    judged.resolved["versions"] = cluster.run_on_root(checks.versions)
    settings, facts, choices = judged.config, judged.facts, judged.choices
    cluster.run_on_all(lambda: checks.check_nodes(cluster, facts))
    grid = grids.make(cluster, settings.parallel)
    team, group = roles(grid.cluster, judged.asked.traits, settings.parallel.is_cut)
    if team.n_ranks > 1 and settings.fault.on_worker_loss == "continue":
        cluster.run_on_root(partial(checks.check_loss, cluster))
    places = _places(cluster, settings, choices)
    sampler = any_workers.sampler(facts.n_train, team.n_workers, settings.train)
    n_micro = micro_batches(settings.parallel, sampler)
    plan = Plan(**vars(judged), places=places, team=team, group=group, grid=grid, n_micro=n_micro)
    configure(plan, cluster)
    if settings.parallel.is_cut:
        plan.cuts = cluster.run_on_root(lambda: _cuts(plan, micro(sampler, plan.n_micro)))
    return plan


def _heed(cluster: Cluster, config: Config) -> None:
    """Let the deadline hold, and an incident find its folder, while code of the user runs."""
    seconds = config.sync.get("deadline_s")
    if isinstance(seconds, int | float) and seconds > 0:
        cluster.rendezvous.deadline_s = float(seconds)
    if cluster.link.leads:
        RECORDER.tell(dir=config.record.dir, deadline_s=cluster.rendezvous.deadline_s)


def regrouped(plan: Plan, cluster: Cluster) -> Plan:
    """Return the plan for the surviving ranks of ``cluster``. All survivors must call."""
    mode = sync.make(plan.choices["sync"])
    team, group = roles(cluster, mode.traits)
    grid = grids.make(cluster, plan.config.parallel)
    survivors = replace(plan, team=team, group=group, grid=grid, others=None)
    configure(survivors, cluster)
    if cluster.n_ranks > 1:
        cluster.run_on_root(lambda: mode.check(team))
    return survivors


def acquaint(plan: Plan, cluster: Cluster, meets: str) -> None:
    """Let the plan's workers meet, if samples meet those of all workers in its network. All ranks must call."""
    if meets != "workers" or plan.team.n_workers == 1:
        return
    of_workers = plan.others.cluster if plan.others else subcluster(cluster, int(plan.team.worker is None))
    waits, n_cores = sync.Common(**plan.choices["sync"].common), affinity.n_cores(cluster, plan.places.site.topology)
    _configure_within(cluster, [of_workers], waits, n_cores)
    plan.others = Workers(of_workers, cluster.pulse)


def _cuts(plan: Plan, n_samples: int) -> list[int]:
    """Return the best cuts into stages, by the seconds of each layer on this rank for a micro-batch; [] for one stage.

    Raises UserError if there are fewer layers than stages, or no layer can be split into shards.
    """
    plan.check_cut()
    if plan.grid.n_stages == 1:
        return []
    kernels = plan.config.nn.kernels
    with compiling(kernels), phase(COMPILE):
        return cut.found(plan.network, plan.grid.n_stages, n_samples, kernels)


def configure(plan: Plan, cluster: Cluster) -> None:
    """Configure the waits between the ranks of a node, and of a group or crew within it. All ranks must call."""
    waits, n_cores = sync.Common(**plan.choices["sync"].common), affinity.n_cores(cluster, plan.places.site.topology)
    cluster.rendezvous.configure(waits.wait, waits.deadline_s, n_cores)
    _configure_within(cluster, [plan.group.cluster, plan.grid.crew], waits, n_cores)


def _configure_within(cluster: Cluster, subclusters: Sequence[Cluster], waits: sync.Common, n_cores: int) -> None:
    """Configure the waits between some of the ranks of ``cluster``."""
    node_size = cluster.sizes[cluster.node]
    for inner in subclusters:
        if inner is not cluster:
            wait = waits.wait if waits.wait != "auto" or n_cores >= node_size else "block"
            inner.rendezvous.configure(wait, waits.deadline_s, max(1, n_cores * inner.n_ranks // node_size))


def _places(cluster: Cluster, settings: Config, choices: dict[str, Choice]) -> Places:
    """Pin this rank to its cores, and return the placement of its memory. All ranks must call."""
    machine = cluster.run_on_all(lambda: topology.read("/", settings.placement.hbw_nodes))
    cpus, denied = affinity.pin(cluster, machine, settings.affinity)
    site = Site(machine, cpus, [denied] if denied else [])
    placements = {role: choices[place] for role, place in sections.PLACES.items()}
    return cluster.run_on_all(lambda: Places(site, placements, settings.placement.fallback))
