"""``mpirun -n N python -m psframe.bench step``: one exchange of gradients and the update, against plain mpi4py."""

from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from psframe import collectives, optim, sync
from psframe.bench.baselines import BASELINES, TUNED, Vectors
from psframe.bench.files import claim, write
from psframe.bench.ranks import settle
from psframe.cluster.cluster import Cluster
from psframe.cluster.command import asked
from psframe.cluster.communicators import mpi_name
from psframe.cluster.parser import Parser, number
from psframe.config import registry, schema
from psframe.errors import UserError
from psframe.memory.arena import Layout
from psframe.memory.topology import read
from psframe.nn.base import Param
from psframe.optim import Updater
from psframe.record.spread import spread
from psframe.record.view import aligned, say
from psframe.sync.binding import bind, roles
from psframe.sync.sampler import Sampler
from psframe.train.assembly.allocate import build_measured

USAGE = "mpirun -n N python -m psframe.bench step [--size MB,...] [--collective C,...] [--optimizer O] [--json FILE]"
EXAMPLE = "mpirun -n 16 python -m psframe.bench step --size 1.72 --collective shared"
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "sgd": {},
    "momentum": {"name": "sgd", "momentum": 0.9},
    "adam": {"name": "adam"},
}
LR = 1e-3
LEAST_ROUNDS, BURST = 3, 5  # turns, and steps of a turn
STREAM_BYTES = 64 << 20  # of each array of a rank, beyond any cache


def parser() -> Parser:
    cli = Parser(USAGE, "Measure one exchange of gradients with the update of the parameters.", EXAMPLE)
    cli.add_argument("--size", default="1.72", help="megabytes of parameters (default: 1.72, LeNet)")
    cli.add_argument("--collective", default="shared,buffer", help="names, or one with keys, as '{name: shared, ...}'")
    cli.add_argument("--optimizer", choices=list(OPTIMIZERS), default="momentum")
    cli.add_argument("--mode", choices=("sync_ps", "allreduce"), default="sync_ps")
    cli.add_argument("--server", choices=("dedicated", "colocated"), default="dedicated", help="under sync_ps")
    cli.add_argument("--reproducible", choices=("fixed_workers", "none"), default="fixed_workers")
    cli.add_argument("--wait", choices=("auto", "spin", "block"), default="auto")
    cli.add_argument("--baselines", default=",".join(BASELINES), help="which of them, or none (default: all)")
    cli.add_argument("--seconds", type=float, default=2.0, help="to spend on each method at each size (default: 2)")
    cli.add_argument("--json", help="write the figures to this file")
    return cli


@dataclass
class Method:
    """What is timed: ``dirty(k)`` writes new gradients, ``step()`` exchanges and updates, ``moved()`` counts bytes.

    ``check()`` raises where the parameters are not what the gradients have made of them.
    """

    step: Callable[[], None]
    dirty: Callable[[int], None]
    moved: Callable[[], tuple[int, int]] | None = None
    check: Callable[[], None] = lambda: None


def main(cluster: Cluster, argv: Sequence[str]) -> int:
    """Run the command on all ranks; return the exit status."""
    arguments = asked(cluster, lambda: _arguments(parser(), argv))
    if arguments is None:
        return 0
    topology = read("/", environ={})
    settle(cluster, topology, arguments.wait)
    report: dict[str, Any] = {"n_ranks": cluster.n_ranks, "n_nodes": cluster.n_nodes, **vars(arguments)}
    report["mpi"] = mpi_name()
    report["sizes"] = []
    for megabytes in arguments.sizes:
        figures = measure(cluster, arguments, megabytes)
        report["sizes"].append(figures)
        if cluster.rank == 0:
            say(describe(figures, report))
    cluster.run_on_root(lambda: write(arguments.json, report))
    return 0


def _arguments(made: Parser, argv: Sequence[str]) -> dict[str, Any]:
    arguments = vars(made.parse_args(argv))
    try:
        arguments["sizes"] = [number(text) for text in arguments["size"].split(",")]
    except ArgumentTypeError:
        arguments["sizes"] = [0]
    if min(arguments["sizes"]) <= 0:
        raise UserError(f"--size must be megabytes, got {arguments['size']!r}; write, say, --size 0.25,1.72")
    text = arguments["collective"]
    specs = [schema.parse_value(text)] if text.startswith("{") else [{"name": name} for name in text.split(",")]
    arguments["collectives"] = specs
    for spec in specs:
        registry.bind("collective", collectives.TABLE, spec)
    chosen = [] if arguments["baselines"] == "none" else arguments["baselines"].split(",")
    for name in chosen:
        if name not in BASELINES:
            raise UserError(f"--baselines must name some of {', '.join(BASELINES)}, got {name!r}; or none")
    arguments["baselines"] = chosen
    claim(arguments["json"])
    return arguments


def measure(cluster: Cluster, arguments: Namespace, megabytes: float) -> dict[str, Any]:
    """Time all methods in turn at one size; return what was found, the same on every rank."""
    size = max(1, round(megabytes * 1e6 / 4))
    methods = {_label(spec): ours(cluster, arguments, spec, size) for spec in arguments.collectives}
    methods |= {name: baseline(cluster, name, size) for name in arguments.baselines}
    stream = Stream(cluster)
    times = in_turn(cluster, methods, stream, arguments.seconds)
    gbps_of_stream = spread(stream.gbps())
    figures: dict[str, Any] = {"megabytes": megabytes, "stream_gbps": gbps_of_stream, "methods": {}}
    for name, seconds in times.items():
        row: dict[str, Any] = {
            "ms": {key: 1e3 * value for key, value in spread(seconds).items()},
            "rounds": len(seconds),
        }
        moved = methods[name].moved
        if moved:
            n_bytes, sent = (cluster.comm.allreduce(n) for n in moved())
            gbps = n_bytes / row["ms"]["median"] / 1e6
            row |= {"bytes": n_bytes, "sent": sent, "gbps": gbps, "share_of_stream": gbps / gbps_of_stream["median"]}
        figures["methods"][name] = row
    our_times = times[_label(arguments.collectives[0])]
    figures["ratios"] = {name: ratios(times[name], our_times) for name in arguments.baselines}
    return figures


def ratios(theirs: list[float], ours: list[float]) -> dict[str, float]:
    """Return how many times as long they take, turn by turn."""
    return spread([a / b for a, b in zip(theirs, ours, strict=True)])


def _label(spec: dict[str, Any]) -> str:
    keys = ", ".join(f"{key}: {value}" for key, value in spec.items() if key != "name")
    return f"{spec['name']} ({keys})" if keys else str(spec["name"])


def ours(cluster: Cluster, arguments: Namespace, spec: dict[str, Any], size: int) -> Method:
    """Return a step of psframe's: a sync mode over a collective, with its update."""
    keys = {"server": arguments.server} if arguments.mode == "sync_ps" else {}
    mode = sync.make(registry.bind("sync", sync.TABLE, {"mode": arguments.mode, **keys}, "mode"))
    team, group = roles(cluster, mode.traits)
    layout = Layout({"all": Param((size,), (0,))})
    chosen = {"name": "sgd", "lr": LR, **OPTIMIZERS[arguments.optimizer]}
    optimizer = registry.bind("optimizer", optim.TABLE, chosen)()
    choice = registry.bind("collective", collectives.TABLE, spec)

    def make(allocator: Any) -> tuple[Any, Any]:
        sampler = Sampler(team.n_workers, team.n_workers, 1, 0)
        parts = (cluster, team, group, layout, optimizer, sampler, allocator)
        return bind(mode, choice, arguments.reproducible, *parts)

    collective, arena = build_measured(cluster, make)
    collective.warm()
    updater = Updater(optimizer, arena)
    mode.open(updater)
    witness = Witness(optimizer, spec.get("compression", "none") == "none" and spec["name"] != "null")

    def step() -> None:
        collective.traffic.clear()
        updater.clear()
        mode.step(team.n_workers, LR, witness.n_steps)

    def dirty(k: int) -> None:
        if team.worker is not None:
            arena.grads[:] = 1 + k % 3
        witness.step(1 + k % 3)

    def moved() -> tuple[int, int]:
        both = (collective.traffic, updater.traffic)
        return sum(t.read + t.written for t in both), collective.traffic.sent

    return Method(step, dirty, moved, lambda: witness.check(arena.params))


class Witness:
    """One parameter, updated by hand: all workers' gradients are the same number, and so are all parameters."""

    def __init__(self, optimizer: Any, exact: bool):
        self.optimizer, self.exact, self.n_steps = optimizer, exact, 0
        self.params, self.state = np.zeros(1, np.float32), np.zeros((optimizer.n_state, 1), np.float32)

    def step(self, gradient: int) -> None:
        """Follow a step in which every worker's gradient is this."""
        self.n_steps += 1
        self.optimizer.update(self.params, np.full(1, gradient, np.float32), self.state, LR, self.n_steps)

    def check(self, params: np.ndarray) -> None:
        """AssertionError where any parameter is another one."""
        if self.exact and not (params == self.params[0]).all():
            wrong = np.flatnonzero(params != self.params[0])
            raise AssertionError(
                f"after step {self.n_steps} {len(wrong)} parameters are wrong, the first is {wrong[0]}"
            )


def baseline(cluster: Cluster, name: str, size: int) -> Method:
    """Return a step in plain mpi4py."""
    vectors = Vectors(cluster.comm, size, name.startswith("classic"))

    def dirty(k: int) -> None:
        vectors.grads[:] = 1 + k % 3

    return Method(lambda: BASELINES[name](vectors), dirty)


def in_turn(cluster: Cluster, methods: dict[str, Method], stream: "Stream", seconds: float) -> dict[str, list[float]]:
    """Time methods in turn for about ``seconds`` each.

    Return the seconds of every step, from when the last rank has come to when the last one goes: to get there is no
    part of a step, and takes ranks that share cores as long.

    A turn is a few steps. Before each step every rank writes new gradients and waits for the others, in the kernel.
    """
    spans: dict[str, list[tuple[float, float]]] = {name: [] for name in methods}
    until = perf_counter() + seconds * len(methods)
    round_ = 0
    while True:
        for name, method in methods.items():
            for repeat in range(BURST):
                method.dirty(round_ + repeat)
                cluster.barrier()
                began = perf_counter()
                method.step()
                ended = perf_counter()
                cluster.barrier()  # or what the first ranks do next would keep the last from their cores
                if repeat:  # the first finds the caches as another method left them
                    spans[name].append((began, ended))
            method.check()
        stream.take()
        round_ += 1
        if cluster.link.tell(round_ > LEAST_ROUNDS and perf_counter() > until if cluster.link.leads else None):
            break
    # the first round made connections and took memory
    times = np.array([spans[name][BURST - 1 :] for name in methods]) + cluster.clock_offset_s
    cluster.comm.Allreduce(MPI.IN_PLACE, times, MPI.MAX)
    return dict(zip(methods, np.diff(times, axis=2)[:, :, 0].tolist(), strict=True))


class Stream:
    """What all cores of the ranks together read and write, in turn with the methods.

    a = b + c, counted as STREAM does (McCalpin 1995): three arrays, though a is read before it is written.
    """

    def __init__(self, cluster: Cluster, clock: Callable[[], float] = perf_counter):
        self.cluster, self.clock = cluster, clock
        busy = cluster.node_rank < cluster.rendezvous.n_cores
        self.arrays = [np.ones(STREAM_BYTES // 4 if busy else 0, np.float32) for _ in range(3)]
        self.seconds: list[float] = []

    def take(self) -> None:
        """Measure once more. All ranks must call."""
        self.cluster.barrier()
        began = self.clock()
        np.add(self.arrays[1], self.arrays[2], out=self.arrays[0])
        self.seconds.append(self.clock() - began)

    def gbps(self) -> list[float]:
        """Return GB/s by the slowest rank, for all ranks. All must call."""
        n_bytes = self.cluster.comm.allreduce(3 * self.arrays[0].nbytes)
        slowest = np.array(self.seconds)
        self.cluster.comm.Allreduce(MPI.IN_PLACE, slowest, MPI.MAX)
        return [n_bytes / s / 1e9 for s in slowest.tolist()]


def describe(found: dict[str, Any], report: dict[str, Any]) -> str:
    """Return what was found at one size as text."""
    head = (
        f"{found['megabytes']:g} MB, {report['n_ranks']} ranks on {report['n_nodes']} node(s), {report['mode']}, "
        f"{report['optimizer']}; this machine adds arrays at {found['stream_gbps']['median']:.1f} GB/s"
    )
    table = [["method", "ms", "quartiles", "GB/s", "of that", "MB sent", "times ours", ""]]
    for name, row in found["methods"].items():
        ms = row["ms"]
        cells = [name, f"{ms['median']:.3f}", f"{ms['low']:.3f} to {ms['high']:.3f}"]
        if "gbps" in row:
            cells += [f"{row['gbps']:.1f}", f"{row['share_of_stream']:.0%}", f"{row['sent'] / 1e6:.2f}"]
        else:
            cells += ["", "", ""]
        ratio = found["ratios"].get(name)
        cells += [f"{ratio['median']:.1f} ({ratio['low']:.1f} to {ratio['high']:.1f})" if ratio else "", ""]
        table.append(cells)
    best = [name for name in TUNED if name in found["ratios"]]
    lines = [head, aligned(table)]
    if best:
        name = min(best, key=lambda name: found["ratios"][name]["median"])
        lines.append(f"the best of {', '.join(best)}: {found['ratios'][name]['median']:.1f} times as long")
    return "\n".join(lines) + "\n"
