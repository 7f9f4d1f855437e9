"""Benchmark ``pipeline`` (:func:`main`): a pipeline's step against the same step in one process.

In ``mpirun -n S python -m psframe.bench pipeline CONFIG`` both train the config's network, on the same samples in the
same micro-batches, with one thread per rank. They take turns, while the other ranks sleep. The config's grid spans all
ranks; the single process trains as one replica does.
"""

from argparse import Namespace
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np
from mpi4py import MPI

from psframe.bench.files import claim, write
from psframe.cluster.cluster import Cluster
from psframe.cluster.command import asked
from psframe.cluster.joining import join
from psframe.cluster.parser import Parser
from psframe.errors import UserError
from psframe.record.spread import spread
from psframe.record.view import aligned, say
from psframe.train.assembly import assemble, setup
from psframe.train.compute.parallel.schedule import bubble
from psframe.train.plan import plan
from psframe.train.plan.plan import Plan
from psframe.train.run import Run

USAGE = "python -m psframe.bench pipeline CONFIG [key.path=value ...] [--steps K] [--repetitions R] [--json FILE]"
EXAMPLE = "mpirun -n 2 python -m psframe.bench pipeline config.yaml"
SAME = ("train.threads=1", "affinity=none")
RATE = 1e-6


def parser() -> Parser:
    cli = Parser(USAGE, "Measure the stages of a network against one process.", EXAMPLE)
    cli.add_argument("config", help="a YAML file with parallel.pipeline; nothing is written")
    cli.add_argument("overrides", nargs="*", help="key.path=value")
    cli.add_argument("--steps", type=int, default=2, help="of a repetition (default: 2)")
    cli.add_argument("--repetitions", type=int, default=7, help="(default: 7)")
    cli.add_argument("--json", help="write the figures to this file; - for stdout, instead of the table")
    return cli


def main(cluster: Cluster, argv: Sequence[str]) -> int:
    """Run the command on all ranks; return the exit status."""
    arguments = asked(cluster, lambda: _arguments(parser(), argv))
    if arguments is None:
        return 0
    run_plan = plan.make(cluster, arguments.config, [*arguments.overrides, *SAME])
    cluster.run_on_root(lambda: _check(run_plan))
    contenders = {"pipeline": _built(cluster, run_plan)}
    if cluster.rank == 0:
        alone = join(MPI.COMM_SELF)
        cut = f"parallel={{micro_batches: {run_plan.n_micro}}}"
        contenders["one process"] = _built(
            alone, plan.make(alone, arguments.config, [*arguments.overrides, *SAME, cut])
        )
    cluster.barrier()
    report = _measured(cluster, run_plan, contenders, arguments)
    if cluster.rank == 0 and arguments.json != "-":
        say(table(report))
    cluster.run_on_root(lambda: write(arguments.json, report))
    return 0


def _arguments(made: Parser, argv: Sequence[str]) -> dict[str, Any]:
    arguments = vars(made.parse_intermixed_args(argv))
    for name in ("steps", "repetitions"):
        if arguments[name] < 1:
            raise UserError(f"--{name} must be at least 1, got {arguments[name]}; give another")
    claim(arguments["json"])
    return arguments


def _check(judged: Plan) -> None:
    if judged.grid.n_stages == 1:
        raise UserError("a pipeline must have stages, got parallel.pipeline=1; give parallel.pipeline=2, or more")


def _built(cluster: Cluster, judged: Plan) -> Run:
    run = assemble.build_run(cluster, judged)
    setup.init_parameters(run, None, quiet=True)
    return run


def _measured(cluster: Cluster, judged: Plan, contenders: dict[str, Run], arguments: Namespace) -> dict[str, Any]:
    """Return the figures. All ranks must call."""
    by_name: dict[str, list[float]] = {"pipeline": [], "one process": []}
    bubbles: list[float] = []
    for number in range(1 + arguments.repetitions):  # the first is not counted
        for name in list(by_name)[:: 1 if number % 2 else -1]:
            cluster.barrier()
            began = perf_counter()
            busy_s = _steps(contenders[name], arguments.steps) if name in contenders else 0.0
            seconds = perf_counter() - began
            cluster.barrier()
            by_name[name].append(cluster.comm.allreduce(seconds, MPI.MAX))
            if name == "pipeline":
                stalled_s = contenders[name].work.waited_s
                contenders[name].work.begin()
                bubbles.append(cluster.comm.allreduce(stalled_s) / cluster.comm.allreduce(busy_s))
    for times in (*by_name.values(), bubbles):
        del times[0]
    n_stages, n_micro = judged.grid.n_stages, judged.n_micro
    ratios = [one / cut for one, cut in zip(by_name["one process"], by_name["pipeline"], strict=True)]
    return {
        "stages": n_stages,
        "replicas": judged.grid.n_replicas,
        "micro_batches": n_micro,
        "schedule": judged.config.parallel.schedule,
        "batch_size": judged.config.train.batch_size,
        "cuts": judged.cuts,
        "step_s": {name: spread([seconds / arguments.steps for seconds in times]) for name, times in by_name.items()},
        "speedup": spread(ratios),
        "limit": n_stages * (1 - bubble(n_micro, n_stages)),
        "bubble": spread(bubbles),
        "bubble_formula": bubble(n_micro, n_stages),
    }


def _steps(run: Run, n_steps: int) -> float:
    """Run ``n_steps`` steps; return the seconds of computing gradients, or waiting for them."""
    losses, seconds = np.zeros(1), 0.0
    n_samples = run.sampler.samples_in(0)
    samples = run.sampler.samples(run.sampler.permutation(0), 0, run.team.worker or 0)
    for step in range(1, 1 + n_steps):
        began = perf_counter()
        run.work.gradients(samples, n_samples, 0, losses)
        seconds += perf_counter() - began
        run.sync.step(n_samples, RATE, step)
    return seconds


def table(report: dict[str, Any]) -> str:
    """Format the figures as text."""

    def of(found: dict[str, float], scale: float = 1.0, digits: int = 3) -> str:
        low, middle, high = (f"{found[key] * scale:.{digits}f}" for key in ("low", "median", "high"))
        return f"{middle} ({low} to {high})"

    lines = [
        ["pipeline", f"{report['stages']} stages, {report['micro_batches']} micro-batches, {report['schedule']}"],
        ["a step, pipeline", f"{of(report['step_s']['pipeline'])} s"],
        ["a step, one process", f"{of(report['step_s']['one process'])} s"],
        ["faster by", f"{of(report['speedup'], digits=2)}; by the formula at most {report['limit']:.2f}"],
        ["idle", f"{of(report['bubble'], 100, 1)} %; by the formula {100 * report['bubble_formula']:.1f} %"],
    ]
    return aligned(lines)
