"""Command ``psframe simulate CONFIG --ranks N,N --machine NAME`` (:func:`main`): training in virtual time."""

import json
import os
import signal
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import mpi4py

mpi4py.rc.initialize = False  # virtual ranks need no MPI, only its names

from psframe.bench import sweep  # noqa: E402
from psframe.cluster import mpirun  # noqa: E402
from psframe.cluster.parser import Parser  # noqa: E402
from psframe.cluster.process import guarded  # noqa: E402
from psframe.errors import UserError, sentence  # noqa: E402
from psframe.predict import command, machine  # noqa: E402
from psframe.predict.exchange import Node  # noqa: E402
from psframe.predict.job import ExchangePlan  # noqa: E402
from psframe.predict.machine import Machine  # noqa: E402
from psframe.predict.model import Job  # noqa: E402
from psframe.record import metrics  # noqa: E402
from psframe.record.view import aligned, say  # noqa: E402
from psframe.virtual.training import Simulation, simulated  # noqa: E402

USAGE = (
    "python -m psframe.virtual CONFIG [key.path=value ...] --ranks N,N --machine NAME|FILE "
    "[--nodes N] [--link NAME] [--slow RANK:STEPS] [--seed N] [--step-s SECONDS]"
)
EXAMPLE = "psframe simulate config.yaml --machine knl-7250-mcdram --ranks 64,1024 --nodes 16"
#: headings, keys of a record and formats
COLUMNS = (
    *(("ranks", "n_ranks", ","), ("nodes", "n_nodes", ","), ("epochs", "epoch", ","), ("seconds", "seconds", ".3f")),
    *(("samples/s", "samples_per_s", ",.0f"), ("wait", "wait_s", ".3f"), ("staleness", "staleness_p50", ",")),
    *(("p99", "staleness_p99", ","), ("loss", "loss", ".4f"), ("accuracy", "accuracy", ".2%")),
)
STEP_DEVIATION = 0.05  # of steps whose seconds are given: as on a machine without other load


def parser() -> Parser:
    cli = Parser(
        USAGE, "Train on virtual ranks: real gradients, in the time of a machine that is not at hand.", EXAMPLE
    )
    cli.add_argument("config", nargs="?", help="a YAML file")
    cli.add_argument("overrides", nargs="*", help="key.path=value, as sync.mode=async_ps")
    cli.add_argument("--ranks", default="64", help="numbers of ranks (default: 64)")
    cli.add_argument("--machine", help=f"a profile: a file, or {', '.join(machine.names())}")
    cli.add_argument("--nodes", type=int, help="nodes of these ranks (default: as few as have a core for each rank)")
    cli.add_argument("--link", help=f"what joins nodes: {', '.join(machine.links())} (default: the machine's)")
    cli.add_argument("--slow", metavar="RANK:STEPS", help="a rank that sleeps for so many step times after each step")
    cli.add_argument("--seed", type=int, default=0, help="of the steps' random part, and of ties (default: 0)")
    cli.add_argument("--step-s", type=float, help="seconds of a worker's step there, in place of measuring one here")
    cli.add_argument("--mpirun", help=mpirun.HELP)
    cli.set_defaults(what_if=None, best=False, check=False, hosts=None, per_node=None)  # what predict is asked beside
    return cli


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status."""
    arguments = parser().parse_intermixed_args(argv)
    mpirun.refuse_ranks("psframe.virtual")
    asked = [_simulation(arguments, profile, n, compute) for profile, n, compute in _jobs(arguments)]
    rows = [[heading for heading, _, _ in COLUMNS]]
    for record in _apart([partial(_record, one) for one in asked]):
        rows.append([format(record[key], form) if record[key] is not None else "-" for _, key, form in COLUMNS])
        say(f"simulated on {record['simulated']}: {record['run']}")
    say(f"\n{aligned(rows)}")
    return 0


def _jobs(arguments: Namespace) -> list[tuple[Machine, int, Any]]:
    """Return each number of ranks, with the profile, and what was measured here: None if a step's seconds are given."""
    counts = sweep.counts(arguments.ranks)
    if arguments.nodes is not None and not 1 <= arguments.nodes <= min(counts):
        raise UserError(f"--nodes must have a rank each, got {arguments.nodes} for {min(counts)} rank(s); give fewer")
    if arguments.step_s is not None and arguments.step_s <= 0:
        raise UserError(f"--step-s must be above 0 seconds, got {arguments.step_s:g}; give a worker's step")
    if arguments.step_s and arguments.config and arguments.machine:
        profile = machine.read(arguments.machine)
        return [(profile, n, None) for n in counts]
    found = command.judged(arguments, mpirun.launcher(arguments.mpirun))
    return [(found.job.machine, n, found) for n in counts]


def _simulation(arguments: Namespace, profile: Machine, n: int, found: Any) -> Simulation:
    nodes = arguments.nodes or -(-n // int(profile.cores.value))
    here = -(-n // nodes)
    overrides = [*arguments.overrides, *_slow(arguments.slow, n)]
    if found:
        way = found.at(n, per_node=here)
        compute_s, deviation = _modelled(found.job, way), found.job.work.deviation
    else:
        turns = max(1.0, here / profile.cores.value)
        compute_s, deviation = _given(arguments.step_s * turns), STEP_DEVIATION
    link = machine.link(arguments.link or profile.link)
    return Simulation(
        arguments.config, overrides, [rank * nodes // n for rank in range(n)], compute_s, deviation,
        Node(profile, here), link, arguments.machine, arguments.seed,
    )  # fmt: skip


def _modelled(job: Job, way: ExchangePlan) -> Callable[[int, int], float]:
    return lambda samples, batch: job.compute_s(way, samples)


def _given(step_s: float) -> Callable[[int, int], float]:
    """Return the seconds of so many samples, of a step that takes ``step_s`` with a full batch."""
    return lambda samples, batch: step_s * samples / batch


def _slow(text: str | None, n: int) -> list[str]:
    """Return the config's keys of a slow rank."""
    if text is None:
        return []
    rank, _, steps = text.partition(":")
    try:
        number, factor = int(rank), float(steps)
    except ValueError:
        number, factor = -1, 0.0
    if not 0 <= number < n or factor <= 0:
        raise UserError(
            f"--slow must name one of {n} rank(s) and the step times that it loses, got {text!r}; write, say, 1:4.0"
        )
    return [f"fault.slow_rank={number}", f"fault.slow_steps={factor}"]


def _record(asked: Simulation) -> dict[str, Any]:
    run = simulated(asked)
    assert run.outputs.run_dir
    path = run.outputs.run_dir.path
    records = metrics.read(path)
    return {**records[-1], "seconds": sum(record["epoch_s"] for record in records), "run": str(path)}


def _apart(bodies: Sequence[Callable[[], dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the results of functions that are called in processes of their own, as many at a time as there are cores.

    Raises the first UserError of one.
    """
    n_cores, results = len(os.sched_getaffinity(0)), list[dict[str, Any]]()
    for first in range(0, len(bodies), n_cores):
        begun = [_begun(body) for body in bodies[first : first + n_cores]]
        try:
            results += [_answered(pipe) for _, pipe in begun]
        finally:
            for pid, _ in begun:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)  # those that are not done: of one that failed, or on Ctrl-C
                os.waitpid(pid, 0)
    return results


def _answered(pipe: int) -> dict[str, Any]:
    """Return what a child has written to a pipe; raise UserError for its mistake, or where it has ended before."""
    with os.fdopen(pipe, "rb") as told:
        answer: dict[str, Any] = json.loads(told.read() or b'{"error": "a simulation has ended early"}')
    if "error" in answer:
        raise UserError(answer["error"])
    return answer


def _begun(body: Callable[[], dict[str, Any]]) -> tuple[int, int]:
    """Call a function in a child; return its number, and a pipe that will have the result."""
    reads, writes = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writes)
        return pid, reads
    status = 1
    try:
        try:
            answer = body()
        except Exception as error:
            message = sentence(error)
            if not message:
                raise
            answer = {"error": message}
        with os.fdopen(writes, "wb") as told:
            told.write(json.dumps(answer).encode())
        status = 0
    except KeyboardInterrupt:
        pass  # which the parent has had, too
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(guarded(lambda: main(sys.argv[1:])))
