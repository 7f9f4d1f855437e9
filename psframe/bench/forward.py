"""Benchmark ``python -m psframe.bench forward --ranks 1,2,4`` (:func:`main`): strong scaling of a forward pass.

The experiment of Hasheminezhad et al. 2020, "Towards a scalable and distributed infrastructure for deep learning
applications": the four-layer network for human activity at a mini-batch of 8000, split among the ranks. Samples are
random, drawn by their index, so that any number of ranks works on the same ones. A time ends when the last rank has its
outputs.
"""

from argparse import Namespace
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from psframe import compiled
from psframe.bench.files import write
from psframe.bench.kernels import INPUTS
from psframe.bench.ranks import settle
from psframe.cluster.cluster import Cluster
from psframe.cluster.command import asked
from psframe.cluster.parser import Parser
from psframe.collectives.base import cut
from psframe.config.registry import load
from psframe.errors import UserError
from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena
from psframe.memory.topology import read
from psframe.models import BUILT_IN
from psframe.nn.base import Pass
from psframe.nn.initial import initialize
from psframe.nn.network import Network
from psframe.nn.threads import Threads
from psframe.record.spread import spread
from psframe.record.view import aligned, say

USAGE = (
    "python -m psframe.bench forward [--ranks N,N] [--model M] [--batch B] [--repetitions K] [--threads T] "
    "[--json FILE] [--mpirun CMD]"
)
EXAMPLE = "python -m psframe.bench forward --ranks 1,2,4"
SEED = 0
TOLERANCE = 1e-4  # relative, of the outputs' mean size, between numbers of ranks


def parser() -> Parser:
    cli = Parser(USAGE, "Measure the forward pass of a mini-batch that ranks share.", EXAMPLE)
    cli.add_argument("--model", default="har_cnn", help=f"one of {', '.join(INPUTS)} (default: har_cnn)")
    cli.add_argument("--batch", type=int, default=8000, help="samples of all ranks together (default: 8000)")
    cli.add_argument("--repetitions", type=int, default=10, help="(default: 10)")
    cli.add_argument("--threads", type=int, default=1, help="of each rank (default: 1)")
    cli.add_argument("--json", help="write the figures to this file; - for stdout, instead of the table")
    return cli


def main(cluster: Cluster, argv: Sequence[str]) -> int:
    """Run the command on all ranks; return the exit status."""
    arguments = asked(cluster, lambda: _checked(vars(parser().parse_args(argv)), cluster.n_ranks))
    if arguments is None:
        return 0
    topology = cluster.run_on_all(lambda: read("/"))
    settle(cluster, topology)
    network, x = cluster.run_on_all(lambda: _made(arguments, cut(arguments.batch, cluster.n_ranks, cluster.rank)))
    seconds, size = _measure(cluster, network, x, arguments.repetitions)
    row = {"n_ranks": cluster.n_ranks, "seconds": spread(seconds), "taken": seconds, "mean_output": size}
    report = {"bench": "forward", "model": arguments.model, "batch": arguments.batch, "machine": topology.cpu}
    report = joined([report | {"cores": cluster.rendezvous.n_cores, "rows": [row]}])
    if cluster.rank == 0 and arguments.json != "-":
        say(table(report))
    cluster.run_on_root(lambda: write(arguments.json, report))
    return 0


def _checked(arguments: dict[str, Any], n_ranks: int) -> dict[str, Any]:
    for name in ("batch", "repetitions", "threads"):
        if arguments[name] < 1:
            raise UserError(f"--{name} must be 1 or more, got {arguments[name]}; give 1")
    if arguments["batch"] < n_ranks:
        raise UserError(f"--batch must have a sample for each rank, got {arguments['batch']} for {n_ranks}; give more")
    if arguments["model"] not in INPUTS:
        raise UserError(f"--model must be one of {', '.join(INPUTS)}, got {arguments['model']!r}; give one of these")
    return arguments


def _made(arguments: Namespace, mine: slice) -> tuple[Network, np.ndarray]:
    """Return the network, and this rank's samples, float32 (n, *input_shape)."""
    shape, n_classes = INPUTS[arguments.model]
    network = Network(load("--model", BUILT_IN, arguments.model)(shape, n_classes), shape, n_classes)
    allocator, n = Allocator(), mine.stop - mine.start
    network.bind(Arena(network.layout, 0, allocator), n, allocator, "direct", Threads(arguments.threads))
    initialize(network, SEED)
    x = allocator.zeros((n, *network.input_shape), np.float32, "activations")
    samples = np.arange(mine.start, mine.stop)
    compiled.random.uniform(SEED, compiled.random.AUGMENT, 0, samples, x.reshape(n, -1))
    return network, x


def _measure(cluster: Cluster, network: Network, x: np.ndarray, repetitions: int) -> tuple[list[float], float]:
    """Return the slowest rank's seconds by repetition, and the mean absolute output. All ranks must call."""
    if not cluster.link.leads:
        cluster.link.tell()  # the node's first rank compiles, the others load its code
    logits = network.forward(x, Pass())
    if cluster.link.leads:
        cluster.link.tell()
    seconds = []
    for _ in range(repetitions):
        cluster.barrier()
        began = perf_counter()
        logits = network.forward(x, Pass())
        cluster.barrier()
        seconds.append(perf_counter() - began)
    slowest = np.array(seconds)
    cluster.comm.Allreduce(MPI.IN_PLACE, slowest, MPI.MAX)
    size, n = cluster.comm.allreduce(np.array([np.abs(logits).sum(dtype=float), logits.size]))
    return slowest.tolist(), float(size / n)


def joined(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge reports of several numbers of ranks, with speed-ups over one rank if that was measured.

    Raise UserError if outputs differ.
    """
    rows = sorted((row for report in reports for row in report["rows"]), key=lambda row: row["n_ranks"])
    first = rows[0]
    for row in rows:
        if not abs(row["mean_output"] - first["mean_output"]) <= TOLERANCE * first["mean_output"]:
            raise UserError(
                f"all numbers of ranks must come to the same outputs, got a mean size of {row['mean_output']:g} at "
                f"{row['n_ranks']} ranks and {first['mean_output']:g} at {first['n_ranks']}; trust no figure of these"
            )
        median = row["seconds"]["median"]
        row["samples_per_s"] = reports[0]["batch"] / median
        if first["n_ranks"] == 1:
            row["speedup"] = first["seconds"]["median"] / median
            row["efficiency"] = row["speedup"] / row["n_ranks"]
    return {**reports[0], "cores": max(report["cores"] for report in reports), "rows": rows}


def table(report: dict[str, Any]) -> str:
    """Format a report as text."""
    lines = [["ranks", "ms", "quartiles", "samples/s", "speed-up", "efficiency", ""]]
    for row in report["rows"]:
        ms = {key: 1e3 * value for key, value in row["seconds"].items()}
        lines.append(
            [str(row["n_ranks"]), f"{ms['median']:.1f}", f"{ms['low']:.1f} to {ms['high']:.1f}",
             f"{row['samples_per_s']:,.0f}", *_against_one(row), ""]
        )  # fmt: skip
    head = f"{report['model']}, forward, {report['batch']:,} samples, {report['machine']} ({report['cores']} cores)"
    return "\n".join([head, aligned(lines)])


def _against_one(row: dict[str, Any]) -> list[str]:
    return [f"{row['speedup']:.2f}", f"{row['efficiency']:.0%}"] if "speedup" in row else ["-", "-"]
