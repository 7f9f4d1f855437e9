"""Benchmark ``peers`` (:func:`main`): seconds per epoch of psframe, DDP, Horovod and plain mpi4py.

In ``python -m psframe.bench peers CONFIG --ranks 2,4`` all train the config's network from the same initial parameters,
on the same batches, prepared by the same code, at the same learning rates. They take turns epoch by epoch, in rotating
order. Every rank is a worker in all of them, so the config must have no dedicated server. Losses agree to rounding
until ties in a max pooling resolve differently; from then on they diverge as those of PyTorch with and without oneDNN
do, so accuracies of a short run differ.
"""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from time import perf_counter
from typing import Any, Protocol

import numpy as np
from mpi4py import MPI

from psframe.bench.files import write
from psframe.bench.rivals import RIVALS
from psframe.bench.torch_network import FORMATS
from psframe.cluster.cluster import AgreedError, Cluster
from psframe.cluster.command import asked
from psframe.cluster.communicators import mpi_name
from psframe.cluster.parser import Parser
from psframe.errors import UserError
from psframe.optim import SGD
from psframe.record.spread import spread
from psframe.record.view import aligned, say
from psframe.train import epoch
from psframe.train.assembly import assemble, setup
from psframe.train.plan import plan
from psframe.train.run import Run

USAGE = (
    "python -m psframe.bench peers CONFIG [key.path=value ...] [--ranks N,N] [--peers ddp,horovod,mpi4py] "
    "[--global-batch B] [--json FILE] [--mpirun CMD]"
)
EXAMPLE = "python -m psframe.bench peers config.yaml sync.mode=allreduce --ranks 2,4 --peers ddp"
SAME = ("allreduce", "sync_ps")  # modes whose step applies the mean over all its samples once
WARM_STEPS = 3


class Contender(Protocol):
    """Interface of psframe and the rivals. All ranks must call every method together."""

    def train_epoch(self, run: Run) -> np.ndarray: ...
    def evaluate(self, run: Run) -> float: ...
    def restore(self) -> None: ...
    def wake(self) -> None: ...
    def rest(self) -> None: ...
    def close(self) -> None: ...


def parser() -> Parser:
    cli = Parser(USAGE, "Measure an epoch in psframe and in other systems, in turn.", EXAMPLE)
    cli.add_argument("config", help="a YAML file; checkpoints and records are not written")
    cli.add_argument("overrides", nargs="*", help="key.path=value; train.epochs: of each, in turn")
    cli.add_argument("--peers", help=f"some of {', '.join(RIVALS)} (default: those that can run here)")
    cli.add_argument("--format", choices=FORMATS, default="channels_last", help="of PyTorch (default: channels_last)")
    cli.add_argument("--global-batch", type=int, help="samples a step of all ranks (default: train.batch_size each)")
    cli.add_argument("--json", help="write the figures to this file; - for stdout, instead of the table")
    return cli


def main(cluster: Cluster, argv: Sequence[str]) -> int:
    """Run the command on all ranks; return the exit status."""
    arguments = asked(cluster, lambda: _arguments(parser(), argv, cluster.n_ranks))
    if arguments is None:
        return 0
    run_plan = plan.make(cluster, arguments.config, arguments.overrides)
    run = assemble.build_run(cluster, run_plan)
    cluster.run_on_root(lambda: _check(run))
    setup.init_parameters(run, None, quiet=True)
    cluster.barrier()  # now every rank has the initial parameters
    contenders: dict[str, Contender] = {"psframe": Ours(run)}
    rivals, absent = _invited(run, arguments)
    contenders |= rivals
    _warm(run, contenders)
    report = _report(run, *_in_turn(run, contenders), contenders, absent)
    for contender in contenders.values():
        contender.close()
    if cluster.rank == 0 and arguments.json != "-":
        say(table(report))
    cluster.run_on_root(lambda: write(arguments.json, report))
    return 0


def _arguments(made: Parser, argv: Sequence[str], n_ranks: int) -> dict[str, Any]:
    arguments = vars(made.parse_intermixed_args(argv))
    if (global_batch := arguments["global_batch"]) is not None:
        if global_batch < n_ranks or global_batch % n_ranks:
            raise UserError(
                f"--global-batch must be a multiple of the ranks, got {global_batch} for {n_ranks}; give another"
            )
        arguments["overrides"].append(f"train.batch_size={global_batch // n_ranks}")
    names = None if arguments["peers"] is None else [name.strip() for name in arguments["peers"].split(",")]
    for name in names or ():
        if name not in RIVALS:
            raise UserError(f"--peers must name some of {', '.join(RIVALS)}, got {name!r}; mend it, or leave it out")
    return {**arguments, "peers": names}


def _check(run: Run) -> None:
    """Raise UserError if the rivals could not train the same."""
    if run.network.meets == "workers" and run.team.n_workers > 1:
        raise UserError(
            "the model must have no BatchNorm with over=workers, which the others' networks have not, got one; give "
            "over=batch"
        )
    mode = run.labels["sync_mode"]
    if mode not in (*SAME, "alone"):
        raise UserError(
            f"sync.mode must be {' or '.join(map(repr, SAME))}, in which all train alike, got {mode}; give one of them"
        )
    if run.team.server == "dedicated":
        raise UserError(
            "every rank must be a worker, as in DDP, got a dedicated server; give sync.server=colocated, or "
            "sync.mode=allreduce"
        )
    if run.work.several:
        raise UserError(
            "every rank must take its samples of a step as one batch, as in DDP, got "
            "train.reproducible=any_workers, or parallel; give train.reproducible=fixed_workers, and no parallel"
        )
    if run.updater.average:
        raise UserError(f"average must be none, as rivals have none, got {run.config.average.name}; leave average out")
    if type(run.updater.optimizer) is not SGD:
        name = type(run.updater.optimizer).__name__
        raise UserError(f"optimizer must be sgd, which all have, got {name}; give optimizer.name=sgd")
    for key in ("decoupled", "clip_value", "clip_norm", "groups"):
        if got := getattr(run.updater.optimizer, key):
            raise UserError(f"optimizer must be sgd as all have it, got {key}={got}; leave optimizer.{key} out")


def _invited(run: Run, arguments: Namespace) -> tuple[dict[str, Contender], dict[str, str]]:
    """Return the rivals, and why others are absent; AgreedError if a requested one is. All ranks must call."""
    rivals: dict[str, Contender] = {}
    # ranks must not wait for a rank that cannot import a package
    missing = {name: run.cluster.allgather(RIVALS[name].missing()) for name in arguments.peers or RIVALS}
    absent = {name: next(filter(None, reasons)) for name, reasons in missing.items() if any(reasons)}
    if arguments.peers and absent:
        name, why = next(iter(absent.items()))
        raise AgreedError(f"--peers must name what is installed, got {name}: {why}; install it, or leave it out")
    for name in (name for name in missing if name not in absent):
        kind = RIVALS[name]
        try:
            rivals[name] = run.cluster.run_on_all(lambda kind=kind: kind(run, arguments.format))  # type: ignore[misc]
        except AgreedError as error:
            if arguments.peers:
                raise
            absent[name] = str(error)
    return rivals, absent


class Ours:
    """The contender psframe."""

    def __init__(self, run: Run):
        self.run, self.initial = run, run.network.arena.params.copy()

    def train_epoch(self, run: Run) -> np.ndarray:
        losses = epoch.train_epoch(run).losses
        epoch.forget(run)
        return losses

    def evaluate(self, run: Run) -> float:
        return run.cluster.comm.allreduce(epoch.evaluate(run)[0])[:, 1].sum() / run.facts.n_test

    def restore(self) -> None:
        cluster, arena = self.run.cluster, self.run.network.arena
        cluster.barrier()  # memory may be shared: no rank may train during the reset
        arena.state[:] = 0
        if self.run.group.leads or not arena.shared:
            arena.params[:] = self.initial
            arena.refresh_bf16()
        cluster.barrier()

    def wake(self) -> None:
        """Do nothing: psframe runs nothing beside an epoch."""

    def rest(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        self.run.sync.close()


def _warm(run: Run, contenders: dict[str, Contender]) -> None:
    """Let all compile, connect and touch their memory in a few steps, then reset them."""
    sampler = run.sampler
    n_samples = min(sampler.n_samples, WARM_STEPS * sampler.samples_per_step)
    short = replace(run, sampler=replace(sampler, n_samples=n_samples))
    for contender in contenders.values():
        contender.wake()
        contender.train_epoch(short)
        contender.restore()
        contender.rest()


def _in_turn(run: Run, contenders: dict[str, Contender]) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Train all epochs; return the slowest rank's seconds of each, and the mean losses. All ranks must call."""
    cluster, names = run.cluster, list(contenders)
    times: dict[str, list[float]] = {name: [] for name in names}
    losses: dict[str, list[float]] = {name: [] for name in names}
    for number in range(run.config.train.epochs):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            contenders[name].wake()
            cluster.barrier()
            began = perf_counter()
            with np.errstate(over="ignore", invalid="ignore"):  # the loss is checked below
                summed = contenders[name].train_epoch(run).sum()
            seconds = perf_counter() - began
            cluster.barrier()  # waiting in MPI would occupy the core of a rank that still trains
            contenders[name].rest()
            times[name].append(cluster.comm.allreduce(seconds, MPI.MAX))
            losses[name].append(cluster.comm.allreduce(summed) / run.facts.n_train)
            if not isfinite(losses[name][-1]):
                raise AgreedError(
                    f"the loss must stay finite, got {losses[name][-1]} through {name} in epoch {number + 1}; lower "
                    "optimizer.lr, or warm up with schedule.warmup_epochs"
                )
        run.progress.epoch += 1
    return times, losses


def _report(
    run: Run,
    taken: dict[str, list[float]],
    losses: dict[str, list[float]],
    contenders: dict[str, Contender],
    absent: dict[str, str],
) -> dict[str, Any]:
    """Return the figures for JSON; ratios are to psframe, epoch by epoch. All ranks must call."""
    ratios = {
        name: spread([theirs / ours for theirs, ours in zip(seconds, taken["psframe"], strict=True)])
        for name, seconds in taken.items()
        if name != "psframe"
    }
    row = {
        **{key: run.labels[key] for key in ("n_ranks", "n_nodes", "batch_size", "sync_mode", "collective", "threads")},
        "epoch_s": {name: spread(seconds) for name, seconds in taken.items()},
        "taken": taken,
        "loss": losses,
        "accuracy": {name: contender.evaluate(run) for name, contender in contenders.items()},
        "ratio": ratios,
    }
    return {
        "bench": "peers",
        **{key: run.labels[key] for key in ("model", "dataset")},
        "mpi": mpi_name(),
        "rows": [row],
        "absent": absent,
    }


def joined(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Merge reports of several numbers of ranks."""
    absent = {name: why for report in reports for name, why in report["absent"].items()}
    return {**reports[0], "rows": [row for report in reports for row in report["rows"]], "absent": absent}


def table(report: dict[str, Any]) -> str:
    """Format the figures as text."""
    lines = [["ranks x batch", "", "s an epoch", "quartiles", "accuracy", "times psframe's", "", ""]]
    for row in report["rows"]:
        for name, seconds in row["epoch_s"].items():
            cells = [f"{row['n_ranks']} x {row['batch_size']}", name, f"{seconds['median']:.3g}"]
            cells += [f"{seconds['low']:.3g} to {seconds['high']:.3g}", f"{row['accuracy'][name]:.2%}"]
            ratio = row["ratio"].get(name)
            cells += [f"{ratio['median']:.2f}", f"({ratio['low']:.2f} to {ratio['high']:.2f})"] if ratio else ["", ""]
            lines.append([*cells, ""])
    first = report["rows"][0]
    how = f"{first['sync_mode']} over {first['collective']}" if first["collective"] else first["sync_mode"]
    absent = (f"without {name}: {why}" for name, why in report["absent"].items())
    return "\n".join([f"{report['model']} on {report['dataset']}, {how}", aligned(lines), *absent])
