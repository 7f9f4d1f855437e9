"""Request of a command line (:class:`Asked`): a config's work, measured here, and the target machine."""

import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from psframe.bench import sweep
from psframe.errors import UserError
from psframe.predict import alternatives, load, machine, measure
from psframe.predict.job import ExchangePlan
from psframe.predict.load import Load
from psframe.predict.machine import Machine
from psframe.predict.model import Job
from psframe.record.log import LOG

#: fields of a way that the ranks report as the config gives them
OF_CONFIG = (
    *("mode", "server", "n_servers", "reproducible", "every", "pull_every", "blocks", "samples"),
    *("stages", "shards", "micro_batches"),
)


@dataclass(frozen=True)
class Asked:
    """The request of a command.

    Attributes
    ----------
    config, profile : str
        Paths, or the name of a profile.
    overrides : list of str
    start : sequence of str
        The launcher.
    job : Job
    ranks : list of int
    way : dict
        The config's fields of :class:`psframe.predict.job.ExchangePlan`.
    collective : str
        As in the config; ``auto`` depends on the number of nodes.
    per_node : int
    load : Load
        Other load here while the config's work was measured.
    """

    config: str
    profile: str
    overrides: list[str]
    start: Sequence[str]
    job: Job
    ranks: list[int]
    way: dict[str, Any]
    collective: str
    per_node: int
    load: Load = load.NONE

    def at(self, ranks: int, **other: Any) -> ExchangePlan:
        """Return the config's way on ``ranks`` ranks, with the fields in ``other`` replaced."""
        per_node = other.pop("per_node", self.per_node)
        nodes = self.job.hosts if self.job.hosts > 1 else -(-ranks // per_node)
        collective = other.pop("collective", self.collective)
        if collective == "auto" or (collective == "shared" and nodes > 1):
            collective = "shared" if nodes == 1 else "hierarchical"
        return ExchangePlan(**{**self.way, "ranks": ranks, "nodes": nodes, "collective": collective, **other})

    def mean(self, other: "Asked") -> "Asked":
        """Return the request with the mean seconds of a step of two measurements of the same config."""
        job = replace(self.job, work=self.job.work.mean(other.job.work))
        if job.crowded and other.job.crowded:
            job = replace(job, crowded=job.crowded.mean(other.job.crowded))
        return replace(self, job=job)

    def in_mode(self, mode: str) -> dict[str, Any]:
        """Return the fields of a way in ``sync_ps`` or ``allreduce`` in place of the config's mode."""
        server = (self.way["server"] or "dedicated") if mode == "sync_ps" else None
        return {"mode": mode, "server": server, "every": 1, "pull_every": 1}


def judged(arguments: Namespace, start: Sequence[str]) -> Asked:
    """Measure the config's work on this machine and return the request; raise UserError for a mistake."""
    if not arguments.config:
        raise UserError("psframe.predict must be given a config, got none; give one, or --measure FILE")
    if not os.path.isfile(arguments.config):
        raise UserError(f"a config must be a readable file, got {arguments.config!r}; check the path")
    if not arguments.machine:
        raise UserError(
            f"--machine must name a profile, got none; give one of {', '.join(machine.names())}, or this machine's, "
            "which --measure FILE writes"
        )
    ranks = sweep.counts(arguments.ranks)
    profile = machine.read(arguments.machine)
    if arguments.link:
        machine.link(arguments.link)
    asks_per_node = bool(arguments.what_if) and alternatives.judged(arguments.what_if)[0] == "per_node"
    if arguments.per_node is not None and arguments.per_node < 1:
        raise UserError(f"--per-node must be at least 1, got {arguments.per_node}; give the ranks of a node")
    here = profile.title == measure.this()
    _check_hosts(arguments.hosts, asks_per_node or arguments.per_node is not None, ranks, here)
    if arguments.check:
        measure.check_is_this(profile)
        if arguments.per_node is not None:
            raise UserError("--check trains on this machine alone, got --per-node; leave that out, or give --hosts")
    job, report, other_load = _measured(arguments, start, profile, here, max(ranks))
    tier = report["placement"] if report["placement"] in profile.tiers else None
    way = {key: report[key] for key in OF_CONFIG}
    way |= {"tier": tier, "link": arguments.link, "compression": job.work.codec.name if job.work.codec else "none"}
    hosts = arguments.hosts or 1
    per_node = arguments.per_node or (max(ranks) if here else int(profile.cores.value))
    return Asked(arguments.config, arguments.machine, arguments.overrides, start, replace(job, hosts=hosts), ranks, way,
                 report["collective"], per_node, other_load)  # fmt: skip


def _check_hosts(hosts: int | None, per_node: bool, ranks: list[int], here: bool) -> None:
    if hosts is not None and not here:
        raise UserError("--hosts are of the machine at hand, got the profile of another one; give --per-node")
    if hosts is not None and not 1 <= hosts <= min(ranks):
        raise UserError(
            f"--hosts must have a rank each, got {hosts} for {min(ranks)} rank(s); give fewer, or more ranks"
        )
    if hosts is not None and per_node:
        raise UserError("ranks are spread by --hosts, or by --per-node or --what-if per_node, got both; give one")


def _measured(
    arguments: Namespace, start: Sequence[str], found: Machine, here: bool, most: int
) -> tuple[Job, dict[str, Any], Load]:
    """Measure the config's work here, with a rank per core, and with two per core if more ranks are requested."""
    cores = measure.n_cores()
    n = max(1, min(cores, most) if here else cores)
    print(f"measuring a step of {arguments.config} here, {n} rank(s)", file=sys.stderr, flush=True)
    threads = [] if here else ["train.threads=1"]
    work, report = measure.work(start, n, arguments.config, [*arguments.overrides, *threads])
    crowded, other_load = None, report["load"]
    if here and most > cores:
        crowded, crowded_report = measure.work(start, 2 * cores, arguments.config, arguments.overrides)
        other_load |= crowded_report["load"]
    warn(other_load, found)
    return Job(found, work, crowded, here), report, other_load


def warn(seen: Load, profile: Machine) -> None:
    """Warn on stderr of other load during a measurement: of this machine now, or of the profile's machine."""
    loads = {"this machine": seen.told, f"the machine of the profile ({profile.title})": profile.load}
    for what, load_told in loads.items():
        if load_told:
            LOG.warning(
                f"{what} must be idle while it is measured, got other work on it ({load_told}); stop that and measure "
                "again, or take the figures for too slow"
            )
