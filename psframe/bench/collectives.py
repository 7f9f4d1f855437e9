"""Benchmark ``collectives``: broadcast, gather and allreduce of int32 (Woo et al. 2020).

Under mpirun, :func:`main` measures all methods but ``c`` on the given ranks. Started alone, ``python -m psframe.bench
collectives --ranks N,N`` runs mpirun for one number of ranks after another, and the program of method ``c`` too, and
writes a table as CSV and every figure as HDF5.
"""

import warnings
from argparse import Namespace
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from psframe.bench.collective_methods import METHODS, OPERATIONS, Method, needed_bytes
from psframe.bench.files import write
from psframe.bench.ranks import settle
from psframe.cluster.cluster import AgreedError, Cluster
from psframe.cluster.command import asked
from psframe.cluster.communicators import mpi_name
from psframe.cluster.parser import Parser
from psframe.config.registry import bind
from psframe.errors import UserError, nearest
from psframe.memory import audit
from psframe.memory.free_memory import available_bytes
from psframe.memory.placement import TABLE
from psframe.memory.process_site import Site
from psframe.memory.topology import Topology, read
from psframe.record.spread import spread
from psframe.record.view import aligned, say

USAGE = (
    "python -m psframe.bench collectives [--ranks N,N] [--operation O,...] [--method M,...] [--memory P,...] "
    "[--size MB | O=MB,...] [--repetitions K] [--warm-up K] [--rounds K] [--out DIR] [--mpirun CMD]"
)
EXAMPLE = "python -m psframe.bench collectives --ranks 4,16 --out collectives"
ALL_METHODS = ("c", *METHODS)
MEMORIES = ("default", "ddr", "hbw")
PAPER_MB = {"bcast": 256.0, "gather": 16.0, "allreduce": 256.0}
ROOM = 0.8  # share of the free memory that may be allocated


def parser() -> Parser:
    cli = Parser(USAGE, "Measure a broadcast, a gather and an allreduce.", EXAMPLE)
    cli.add_argument("--operation", default=",".join(OPERATIONS), help="which of them (default: all)")
    cli.add_argument("--method", help=f"of {', '.join(ALL_METHODS)} (default: all)")
    cli.add_argument("--memory", default="default", help=f"of {', '.join(MEMORIES)} (default: default)")
    cli.add_argument("--size", help="megabytes a rank (default: 256 for bcast and allreduce, 16 for gather)")
    cli.add_argument("--repetitions", type=int, default=10, help="that count (default: 10)")
    cli.add_argument("--warm-up", type=int, default=2, help="that do not (default: 2)")
    cli.add_argument("--json", help="write the figures to this file; - for stdout, instead of the table")
    return cli


def checked(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments with lists of names, and sizes in bytes; raise UserError for a mistake."""
    chosen = {"operation": OPERATIONS, "method": ALL_METHODS, "memory": MEMORIES}
    for name, valid in chosen.items():
        names = (arguments[name] or ",".join(valid)).split(",")
        for word in names:
            if word not in valid:
                raise UserError(f"--{name} must name some of {', '.join(valid)}, got {word!r}; {nearest(word, valid)}")
        arguments[name] = names
    for name, minimum in (("repetitions", 1), ("warm_up", 0)):
        if arguments[name] < minimum:
            raise UserError(
                f"--{name.replace('_', '-')} must be {minimum} or more, got {arguments[name]}; give {minimum}"
            )
    sizes = dict(PAPER_MB)
    for part in (arguments["size"] or "").split(",") if arguments["size"] else ():
        operation, _, text = part.rpartition("=")
        try:
            if not (operation == "" or operation in OPERATIONS) or not 4e-6 <= float(text) < 1e4:
                raise ValueError
        except ValueError:
            raise UserError(
                f"--size must be megabytes, less than 10000, got {part!r}; write, say, --size 16 or bcast=64"
            ) from None
        sizes |= dict.fromkeys([operation] if operation else OPERATIONS, float(text))
    arguments["bytes"] = {name: round(sizes[name] * 1e6) // 4 * 4 for name in arguments["operation"]}
    return arguments


def room(memories: Sequence[str], topology: Topology) -> int:
    """Return the bytes that are free in each of the kinds of memory that exist here."""
    free = {node.number: node.free_bytes for node in topology.nodes}
    tiers = {"ddr": topology.ddr, "hbw": topology.hbw}
    rooms = [sum(free[node] for node in tiers[name]) for name in memories if tiers.get(name)]
    return min([available_bytes(), *rooms])


def fitted(n_bytes: dict[str, int], methods: list[str], n_ranks: int, room: int) -> tuple[dict[str, int], list[str]]:
    """Return sizes that fit into ``room`` bytes, halved as often as needed, and a notice for each reduced one."""
    fit, notices = dict(n_bytes), []
    for operation, requested in n_bytes.items():
        while fit[operation] > 4 and needed_bytes(operation, methods, n_ranks, fit[operation]) > ROOM * room:
            fit[operation] = fit[operation] // 8 * 4
        if fit[operation] < requested:
            notices.append(
                f"{operation}: {requested / 1e6:g} MB a rank do not fit {n_ranks} ranks into {room / 1e9:.1f} GB of "
                f"free memory; {fit[operation] / 1e6:g} MB instead"
            )
    return fit, notices


def main(cluster: Cluster, argv: Sequence[str]) -> int:
    """Run the command on all ranks; return the exit status."""
    arguments = asked(cluster, lambda: checked(vars(parser().parse_args(argv))))
    if arguments is None:
        return 0
    topology = cluster.run_on_all(lambda: read("/"))
    cpus = settle(cluster, topology)
    report: dict[str, Any] = {"bench": "collectives", "n_ranks": cluster.n_ranks, "n_nodes": cluster.n_nodes}
    report["mpi"] = mpi_name()
    report["cpus"] = _by_world_rank(cpus)
    methods = [name for name in arguments.method if name in METHODS]
    free = cluster.run_on_root(lambda: room(arguments.memory, topology))
    sizes, report["notices"] = fitted(arguments.bytes, methods or ["c"], max(cluster.sizes), free)
    if cluster.n_nodes > 1 and any(name.startswith("shared") for name in methods):
        methods = [name for name in methods if not name.startswith("shared")]
        report["notices"].append(f"shared, shared_copy: left out, since {cluster.n_nodes} nodes share no memory")
    report["rows"] = []
    for memory in arguments.memory:
        measure(cluster, arguments, methods, sizes, Site(topology, cpus), memory, report)
    if cluster.rank == 0 and arguments.json != "-":
        say(table(report["rows"], report["notices"]))
    cluster.run_on_root(lambda: write(arguments.json, report))
    return 0


def _by_world_rank(cpus: Sequence[int]) -> list[str]:
    """Return every rank's CPUs as text, in the order of MPI's world communicator. All ranks must call."""
    return MPI.COMM_WORLD.allgather(",".join(map(str, cpus)))


def measure(
    cluster: Cluster,
    arguments: Namespace,
    methods: list[str],
    sizes: dict[str, int],
    site: Site,
    memory: str,
    report: dict[str, Any],
) -> None:
    """Add a row per operation and method in one kind of memory to the report, or a notice if that is absent."""
    placement = bind("placement", TABLE, {"name": memory})()
    try:
        policy = cluster.run_on_all(lambda: placement.policy(site, False))
        shown = cluster.run_on_all(lambda: placement.policy(site, True))
    except AgreedError:
        report["notices"].append(
            f"{memory}: left out, since this machine has no such memory (python -m psframe.doctor shows what it has; "
            "MEMKIND_HBW_NODES=1 declares node 1 to be high-bandwidth memory)"
        )
        return
    for operation, n_bytes in sizes.items():
        for name in methods:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                method = cluster.run_on_all(
                    lambda name=name, operation=operation, n=n_bytes // 4: METHODS[name](  # type: ignore[misc]
                        cluster, operation, n, placement, site
                    )
                )
            seconds = taken(cluster, method, arguments.repetitions, arguments.warm_up)
            shared = name.startswith("shared")
            placed = _placed(cluster, method, (shown if shared else policy))
            row = {"operation": operation, "method": name, "memory": memory, "bytes": n_bytes, "placed": placed}
            report["rows"].append(row | {"seconds": seconds})
            notes = dict.fromkeys([*(str(warning.message) for warning in caught), *site.notes])
            report["notices"] += [note for note in notes if note not in report["notices"]]


def taken(cluster: Cluster, method: Method, repetitions: int, warm_up: int) -> list[list[float]]:
    """Return the seconds by repetition, of each rank. Raise AgreedError if a repetition delivers wrong numbers."""
    seconds = np.zeros(repetitions)
    for k in range(-warm_up, repetitions):
        method.prepare(k + warm_up)
        method.meet()
        began = perf_counter()
        method.move()
        ended = perf_counter()
        method.meet()  # checking would occupy the cores of ranks that are not done yet
        cluster.run_on_all(lambda k=k: method.check(k + warm_up))  # type: ignore[misc]
        seconds[max(k, 0)] = ended - began
    by_rank = np.zeros((cluster.n_ranks, repetitions))
    cluster.comm.Allgather(seconds, by_rank)
    return by_rank.T.round(9).tolist()


def _placed(cluster: Cluster, method: Method, policy: Any) -> float | None:
    """Return the worst rank's share of pages on the requested nodes; None without a request."""
    counts = audit.count([("all", block) for block in method.blocks if len(block)], {"all": policy})
    shares = cluster.allgather(counts["all"].share if counts else None)
    return min((share for share in shares if share is not None), default=None)


def table(rows: Sequence[dict[str, Any]], notices: Sequence[str]) -> str:
    """Format rows as text."""
    head = ["operation", "method", "memory", "ranks", "MB", "ms", "quartiles", "placed", ""]
    lines = [head]
    for row in rows:
        slowest = {key: 1e3 * value for key, value in spread(slowest_s(row["seconds"])).items()}
        placed = "" if row.get("placed") is None else f"{row['placed']:.1%}"
        lines.append(
            [row["operation"], row["method"], row["memory"], str(len(row["seconds"][0])), f"{row['bytes'] / 1e6:g}",
             f"{slowest['median']:.3f}", f"{slowest['low']:.3f} to {slowest['high']:.3f}", placed, ""]
        )  # fmt: skip
    return "\n".join([aligned(lines), *notices])


def slowest_s(seconds: Sequence[Sequence[float]]) -> list[float]:
    """Return the slowest rank's seconds, by repetition."""
    return [max(of_ranks) for of_ranks in seconds]
