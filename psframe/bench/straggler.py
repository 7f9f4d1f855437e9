"""Benchmark ``straggler`` (:func:`main`): the speed that remains with a slow worker, or random pauses.

In ``mpirun -n N python -m psframe.bench straggler CONFIG`` every mode trains the same network on the same data: with
all workers healthy, with one slow in every step, and with random pauses of all. Epochs of all modes and conditions take
turns. A worker's step is the network's or, with ``--step-ms``, a sleep: on a machine with fewer cores than ranks, a
pausing worker leaves its core to the others, which hides its cost on a machine with enough cores.
"""

import time
from argparse import Namespace
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
from mpi4py import MPI

from psframe.bench.files import claim, write
from psframe.cluster.cluster import Cluster
from psframe.cluster.command import asked
from psframe.cluster.parser import Parser
from psframe.config.schema import Fault
from psframe.errors import UserError
from psframe.record.spread import spread
from psframe.record.view import aligned, say
from psframe.train import epoch
from psframe.train.assembly import assemble, setup
from psframe.train.faults.injection import Slow
from psframe.train.plan import plan
from psframe.train.run import Run

USAGE = "mpirun -n N python -m psframe.bench straggler CONFIG [key.path=value ...] [--step-ms T] [--json FILE]"
EXAMPLE = "mpirun -n 5 python -m psframe.bench straggler config.yaml"
HEALTHY, SLOW, PAUSES = "healthy", "slow", "pauses"
#: by name: the config's section ``sync``
MODES: dict[str, str] = {
    "sync_ps": "{mode: sync_ps}",
    "balance: speed": "{mode: sync_ps, balance: speed}",
    "backup_workers: 1": "{mode: sync_ps, backup_workers: 1}",
    "staleness: 4": "{mode: async_ps, staleness: 4}",
    "async_ps": "{mode: async_ps}",
    "easgd": "{mode: easgd}",
    "hogwild": "{mode: hogwild}",
}


def parser() -> Parser:
    cli = Parser(USAGE, "Measure each sync mode with a slow worker, or with pauses.", EXAMPLE)
    cli.add_argument("config", help="a YAML file; its sync section is not used, and nothing is written")
    cli.add_argument("overrides", nargs="*", help="key.path=value")
    cli.add_argument("--modes", default=",".join(MODES), help=f"some of {', '.join(MODES)} (default: all)")
    cli.add_argument("--step-ms", type=float, default=0, help="sleep so long in place of computing (default: 0, no)")
    cli.add_argument("--slow", type=float, default=4, help="step times that the slow worker sleeps (default: 4)")
    cli.add_argument("--pause", type=float, default=3, help="step times of a random pause (default: 3)")
    cli.add_argument("--share", type=float, default=0.02, help="of the steps that have one (default: 0.02)")
    cli.add_argument("--rounds", type=int, default=3, help="epochs of each (default: 3)")
    cli.add_argument("--json", help="write the figures to this file")
    return cli


def main(cluster: Cluster, argv: Sequence[str]) -> int:
    """Run the command on all ranks; return the exit status."""
    arguments = asked(cluster, lambda: _arguments(parser(), argv, cluster))
    if arguments is None:
        return 0
    runs = {name: _begun(cluster, arguments, name) for name in arguments.modes}
    last = cluster.n_ranks - 1
    faults = {
        HEALTHY: Fault(),
        SLOW: Fault(slow_rank=last, slow_steps=arguments.slow),
        PAUSES: Fault(slow_rank="all", slow_steps=arguments.pause, slow_share=arguments.share),
    }
    speeds: dict[str, dict[str, list[float]]] = {name: {how: [] for how in faults} for name in runs}
    divided: dict[tuple[str, str], Sequence[int]] = {}  # shares of a step at the end of the last epoch of the kind
    for number in range(arguments.rounds + 1):
        for name, run in runs.items():
            for how, fault in faults.items():
                run.guard.slow = Slow(fault, cluster.rank, number)
                run.balance.divide(divided.get((name, how), ()))
                speed = _speed(run)
                divided[name, how] = run.balance.sizes
                if number:  # the first round is a warm-up
                    speeds[name][how].append(speed)
    for run in runs.values():
        run.sync.close()
    report = _report(arguments, runs, speeds)
    if cluster.rank == 0:
        say(describe(report))
    cluster.run_on_root(lambda: write(arguments.json, report))
    return 0


def _arguments(made: Parser, argv: Sequence[str], cluster: Cluster) -> dict[str, Any]:
    arguments = vars(made.parse_intermixed_args(argv))
    names = [name.strip() for name in arguments["modes"].split(",")]
    for name in names:
        if name not in MODES:
            raise UserError(f"--modes must name some of {', '.join(MODES)}, got {name!r}")
    if cluster.n_ranks < 3:
        raise UserError(f"a straggler needs others to wait for it, got {cluster.n_ranks} rank(s); start 3 or more")
    if arguments["rounds"] < 1 or arguments["slow"] < 0 or not 0 <= arguments["share"] <= 1 or arguments["step_ms"] < 0:
        raise UserError("--rounds must be 1 or more, --slow and --step-ms 0 or more, --share 0 to 1; mend the command")
    claim(arguments["json"])
    return {**arguments, "modes": names}


def _begun(cluster: Cluster, arguments: Namespace, name: str) -> Run:
    run_plan = plan.make(cluster, arguments.config, [*arguments.overrides, f"sync={MODES[name]}"])
    run = assemble.build_run(cluster, run_plan)
    setup.init_parameters(run, None, quiet=True)
    if arguments.step_ms:
        run.network = run.work.network = copy(run.network)
        run.network.gradients = _asleep(run, arguments.step_ms / 1e3)  # type: ignore[method-assign]
    return run


def _asleep(run: Run, seconds: float) -> Any:
    """Return a replacement of ``Network.gradients`` that sleeps ``seconds`` for a batch, and leaves no gradients."""

    def gradients(x: np.ndarray, *_: Any) -> tuple[float, int]:
        run.network.arena.grads[:] = 0
        time.sleep(seconds * len(x) / run.sampler.batch_size)
        return 0.0, 0

    return gradients


def _speed(run: Run) -> float:
    """Return the samples per second of an epoch, until the first worker runs out of work. All ranks must call.

    Only samples computed by then count: at the end of an epoch all workers wait for the last batch, however long it
    takes. Where a mode drops gradients, its workers run out of work with the last update, and what was used counts.
    """
    timings = epoch.train_epoch(run)
    epoch.forget(run)
    comm, offset_s = run.cluster.comm, run.cluster.clock_offset_s
    is_worker = run.team.worker is not None
    step_ends = timings.times[:, 2] + offset_s if is_worker else np.zeros(0)
    # by one clock: who wakes late finds all work done, though it has only just begun
    begun = comm.allreduce(timings.begun + offset_s, MPI.MIN)
    horizon = comm.allreduce(timings.left + offset_s if is_worker else np.inf, MPI.MIN)
    done = comm.allreduce(float(timings.samples.sum() * (step_ends <= horizon).mean()) if len(step_ends) else 0.0)
    used = comm.allreduce(run.tally.used)
    return float((used or done) / (horizon - begun))


def _report(arguments: Namespace, runs: dict[str, Run], taken: dict[str, dict[str, list[float]]]) -> dict[str, Any]:
    """Return the figures: samples per second, and shares of a healthy epoch of the same turn.

    ``limit`` is the share that remains if a slow worker slows only itself.
    """
    modes: dict[str, Any] = {}
    for name, by_how in taken.items():
        healthy = np.array(by_how[HEALTHY])
        modes[name] = {how: {"samples_per_s": spread(speeds)} for how, speeds in by_how.items()}
        for how in (SLOW, PAUSES):
            modes[name][how]["of_healthy"] = spread((np.array(by_how[how]) / healthy).tolist())
        n_workers = runs[name].team.n_workers
        modes[name]["limit"] = (n_workers - 1 + 1 / (1 + arguments.slow)) / n_workers
    return {
        **{key: next(iter(runs.values())).labels[key] for key in ("model", "dataset", "n_ranks", "batch_size")},
        **{key: getattr(arguments, key) for key in ("slow", "pause", "share", "step_ms", "rounds")},
        "modes": modes,
    }


def describe(report: dict[str, Any]) -> str:
    """Format the figures as text."""
    step = f"steps of {report['step_ms']:g} ms, asleep" if report["step_ms"] else "computed steps"
    lines = [["mode", "samples/s, healthy", "one slow", "of healthy", "at best", "random pauses", "of healthy"]]
    for name, figures in report["modes"].items():
        cells = [name, f"{figures[HEALTHY]['samples_per_s']['median']:,.0f}"]
        for how in (SLOW, PAUSES):
            share = figures[how]["of_healthy"]
            cells.append(f"{figures[how]['samples_per_s']['median']:,.0f}")
            cells.append(f"{share['median']:.2f} ({share['low']:.2f} to {share['high']:.2f})")
            if how == SLOW:
                cells.append(f"{figures['limit']:.2f}")
        lines.append(cells)
    return (
        f"{report['model']} on {report['dataset']}, {report['n_ranks']} ranks x batch {report['batch_size']}, {step}\n"
        f"slow: one worker sleeps {report['slow']:g} step times after every step; pauses: every worker sleeps "
        f"{report['pause']:g} after {report['share']:.0%} of its steps\n{aligned(lines)}"
    )
