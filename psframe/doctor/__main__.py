"""Command ``python -m psframe.doctor [CONFIG [key.path=value ...]]`` (:func:`main`): report on a machine and a config.

``mpirun -n N python -m psframe.doctor CONFIG`` checks the config for N ranks. The exit status is 1 if it cannot run as
requested, 2 for a mistake in the command.
"""

import json
import os
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psframe.cluster import begin
from psframe.cluster.parser import Parser
from psframe.cluster.startup import begin_mpi
from psframe.doctor import machine
from psframe.errors import UserError
from psframe.memory.process_site import Site
from psframe.memory.sysfs import spell
from psframe.memory.topology import Topology, read

if TYPE_CHECKING:
    from psframe.cluster.cluster import Cluster


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status. With MPI, all ranks must call."""
    try:
        begin_mpi()
        begin.limit_threads()
        from psframe.cluster import command
    except (ImportError, RuntimeError) as error:
        why = str(error).splitlines()[0]
        return _without_mpi(argv, f"an MPI must be installed, got none ({why}); pip install mpich, or load one")

    def body(cluster: "Cluster") -> int:
        arguments = command.asked(cluster, lambda: vars(_arguments(argv)))
        if arguments is None:
            return 0
        if arguments.root:
            report = cluster.run_on_root(lambda: captured(Path(arguments.root)))
        else:
            topology = cluster.run_on_all(lambda: read("/"))
            report = live(topology, cluster, "", arguments.config, arguments.overrides)
        if arguments.measure:
            report["measured"] = cluster.run_on_root(lambda: _measured(cluster.n_ranks))
        if cluster.rank == 0:
            _print(report, arguments)
        return _status(report)

    return command.guarded(lambda _: command.run(body), argv)


USAGE = (
    "[mpirun -n N] python -m psframe.doctor [CONFIG [key.path=value ...]] [--json] [--torch] [--measure] [--root DIR]"
)
DESCRIPTION = "Report what a machine has, and judge a config on it."
EXAMPLE = "mpirun -n 64 python -m psframe.doctor config.yaml"


def _arguments(argv: Sequence[str]) -> Namespace:
    parser = Parser(USAGE, DESCRIPTION, EXAMPLE)
    parser.add_argument("config", nargs="?", help="a YAML file to judge, for the ranks that the command runs on")
    parser.add_argument("overrides", nargs="*", help="key.path=value")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--torch", action="store_true", help="report on psframe as a backend of torch.distributed")
    parser.add_argument("--measure", action="store_true", help="measure the bandwidths of tiers of memory")
    parser.add_argument("--root", help="read /sys and /proc below this folder: a machine that was captured")
    arguments = parser.parse_intermixed_args(argv)
    if arguments.root and arguments.config:
        parser.error("a config is judged on the machine it will run on: leave out --root or the config")
    for name in ("torch", "measure"):
        if arguments.root and getattr(arguments, name):
            parser.error(f"--{name} is for this machine: leave out --root or --{name}")
    if arguments.root and not Path(arguments.root).is_dir():
        parser.error(f"--root must be a folder that holds sys and proc, got {arguments.root!r}")
    return arguments


def _without_mpi(argv: Sequence[str], why: str) -> int:
    try:
        arguments = _arguments(argv)
        if arguments.root:
            report = captured(Path(arguments.root))
        else:
            report = live(read("/"), None, why, arguments.config, arguments.overrides)
            report |= {"measured": _measured()} if arguments.measure else {}
    except UserError as error:
        print(f"psframe: {error}", file=sys.stderr)
        return 2
    _print(report, arguments)
    return _status(report)


def _print(report: dict[str, Any], arguments: Namespace) -> None:
    from psframe.record.view import say

    if arguments.torch:
        from psframe.torch.facts import facts

        report["torch"] = facts(len(os.sched_getaffinity(0)))
    say(json.dumps(report, indent=1) if arguments.json else machine.text(report))


def _measured(n_ranks: int = 1) -> dict[str, Any]:
    from psframe.doctor.measure import measured

    if n_ranks > 1:
        raise UserError(f"--measure must have the machine for itself, got {n_ranks} ranks; start it without mpirun")
    return measured(read("/"))


def _status(report: dict[str, Any]) -> int:
    return 1 if report.get("config", {}).get("error") else 0


def captured(root: Path) -> dict[str, Any]:
    """Return the report on a machine from its captured files alone."""
    topology = read(root)
    return {
        **machine.machine(topology),
        "transparent_huge_pages": machine.transparent_huge_pages(root),
        "placements": machine.placements(Site(topology, topology.cpus), live=False),
    }


def live(
    topology: Topology, cluster: "Cluster | None", no_mpi: str, path: str | None, overrides: Sequence[str]
) -> dict[str, Any]:
    """Return the report on this machine; ``no_mpi``: the reason for no cluster. With MPI, all ranks must call."""
    site = Site(topology, tuple(sorted(os.sched_getaffinity(0))))
    report = {
        **machine.machine(topology),
        "transparent_huge_pages": machine.transparent_huge_pages(Path("/")),
        "mpi": {"library": _library() if cluster else None, "error": no_mpi or None},
        "affinity": spell(site.cpus),
        "ranks": [],
        "oversubscribed": False,
        "memkind": machine.memkind(topology),
        "bfloat16": machine.bfloat16(),
        "limits": machine.limits(),
        "permissions": machine.permissions(topology),
        "placements": machine.placements(site, live=True),
    }
    cpus, error = site.cpus, no_mpi
    if cluster is not None:
        cpus = tuple(affinity_of(cluster, topology))
        if path is not None:
            cpus, error = _check(cluster, path, overrides, report["permissions"], cpus)
        report["ranks"], report["oversubscribed"] = _ranks(cluster, site, cpus)
    if path is not None:
        report["config"] = {"path": path, "overrides": list(overrides), "error": error or None}
    return report


def _library() -> str:
    from mpi4py import MPI

    return MPI.Get_library_version().replace("\0", "").splitlines()[0].strip()


def affinity_of(cluster: "Cluster", topology: Topology) -> list[int]:
    """Return the CPUs that this rank would get by default. All ranks must call."""
    from psframe.cluster import affinity

    return sorted(affinity.own(cluster, topology, "numa"))


def _ranks(cluster: "Cluster", site: Site, cpus: Sequence[int]) -> tuple[list[dict[str, Any]], bool]:
    """Return each rank's allowed and bound CPUs, and True if some node has more ranks than cores. All must call."""
    ranks = cluster.allgather(
        {"rank": cluster.rank, "node": cluster.node, "allowed_cpus": spell(site.cpus), "cpus": spell(cpus)}
    )
    by_rank = cluster.allgather((cluster.node, frozenset(site.cpus)))
    usable = frozenset().union(*(mask for node, mask in by_rank if node == cluster.node))
    n_cores = sum(1 for core in site.topology.cores if usable.intersection(core))
    on_node = sum(1 for node, _ in by_rank if node == cluster.node)
    return ranks, any(cluster.allgather(on_node > n_cores))


def _check(
    cluster: "Cluster", path: str, overrides: Sequence[str], permissions: dict[str, str], cpus: tuple[int, ...]
) -> tuple[tuple[int, ...], str]:
    """Return the CPUs that a config binds this rank to, and the reason why it cannot run here as requested, or "".

    A fallback or a spill is not as requested, nor is memory that cannot be bound, or verified to be. All ranks must
    call.
    """
    from psframe.train import placement_report
    from psframe.train.assembly import assemble
    from psframe.train.plan import plan

    try:
        judged = plan.make(cluster, path, overrides)
        placement_report.fit(cluster, judged.places, assemble.planned(cluster, judged), judged.config.placement)
    except UserError as error:
        return cpus, str(error)
    notes, policies = list(judged.places.site.notes), judged.places.policies.values()
    if any(policy.mode != "default" for policy in policies) and permissions["mbind"] != "allowed":
        notes.append(f"mbind is {permissions['mbind']}")
    wanted = judged.config.placement.verify == "error" and any(policy.nodes for policy in policies)
    if wanted and permissions["move_pages"] != "allowed":
        notes.append(f"move_pages, by which placement.verify=error counts pages, is {permissions['move_pages']}")
    by_rank = cluster.allgather(notes)
    return judged.places.site.cpus, "; ".join(dict.fromkeys(note for of_rank in by_rank for note in of_rank))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
