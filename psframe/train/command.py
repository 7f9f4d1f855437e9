"""The command ``psframe.train``: plan and build a run, train it, and print its results (:func:`main`)."""

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from psframe.cluster import begin
from psframe.cluster.cluster import Cluster
from psframe.cluster.command import asked, give_up
from psframe.cluster.command import run as over_cluster
from psframe.cluster.flight.recorder import recording
from psframe.cluster.parser import Parser
from psframe.config import tuned
from psframe.config.schema import Source
from psframe.record import log, metrics, onward
from psframe.record.flight import PLAN, phase
from psframe.record.library_warnings import LIBRARIES
from psframe.record.log import LOG
from psframe.record.view import pages_table, say, table

if TYPE_CHECKING:
    from psframe.train.epoch import Stopped
    from psframe.train.plan.plan import Plan
    from psframe.train.run import Run


def _parser() -> Parser:
    usage = "mpirun -n N python -m psframe.train CONFIG [key.path=value ...]"
    example = "mpirun -n 4 python -m psframe.train config.yaml sync.mode=allreduce"
    parser = Parser(usage, "Train a network as a config says.", example)
    parser.add_argument("config", nargs="?", help="a YAML file")
    parser.add_argument("overrides", nargs="*", help="key.path=value, as train.epochs=3")
    parser.add_argument("--dry-run", action="store_true", help="print the resolved config and its memory, and exit")
    parser.add_argument("--quiet", action="store_true", help="print nothing but what goes wrong")
    parser.add_argument("--log-level", choices=log.LEVELS, default="warning", help=log.HELP)
    return parser


def _arguments(parser: Parser, argv: Sequence[str]) -> dict[str, Any]:
    arguments = vars(parser.parse_intermixed_args(argv))
    if arguments["config"] is None:
        parser.error("it names no config")
    return arguments


def main(argv: Sequence[str], world: MPI.Comm | None = None) -> int:
    """Run the command on the ranks of ``world`` (all by default), which must all call; return the exit status."""
    return over_cluster(lambda cluster: _command(cluster, argv), world)


def _command(cluster: Cluster, argv: Sequence[str]) -> int:
    arguments = asked(cluster, lambda: _arguments(_parser(), argv))
    if arguments is None:
        return 0
    config, overrides, quiet = arguments.config, arguments.overrides, arguments.quiet
    if arguments.dry_run:
        from psframe.train import dry_run

        report = dry_run.report(cluster, plan(cluster, config, overrides))
        if cluster.rank == 0:
            say(report)
        return 0
    log.level(arguments.log_level)
    with recording(cluster, give_up), LIBRARIES:
        run, stopped = train(cluster, config, overrides, quiet)
    tell(run, stopped, quiet)
    if stopped and stopped.number:
        return 128 + int(stopped.number)
    if not run.parted:
        run.cluster.barrier()  # a rank that ends without MPI_Finalize counts as dead
    return 0


def train(
    cluster: Cluster,
    source: Source,
    overrides: Sequence[str],
    quiet: bool,
    callbacks: Sequence[Any] = (),
) -> "tuple[Run, Stopped | None]":
    """Plan and train a config, a file's path or its content; see :func:`psframe.train.session.train`.

    Slow imports come after the config's errors. All ranks must call.
    """
    log.begin(cluster.rank)
    planned = plan(cluster, source, overrides)
    with begin.importing():
        session = cluster.run_on_all(lambda: import_module("psframe.train.session"))
    run, stopped = session.train(cluster, planned, quiet, callbacks)
    return run, stopped


def plan(cluster: Cluster, source: Source, overrides: Sequence[str]) -> "Plan":
    """Return the plan of a config; see :func:`psframe.train.plan.plan.make`. All ranks must call."""
    with begin.importing():
        planning = cluster.run_on_all(lambda: import_module("psframe.train.plan.plan"))
        if any(override.startswith(tuned.WORD) for override in overrides):
            overrides = import_module("psframe.train.plan.tuned").applied(cluster, source, overrides)
    with phase(PLAN):
        made: Plan = planning.make(cluster, source, overrides)
    return made


def tell(run: "Run", stopped: "Stopped | None", quiet: bool) -> None:
    """Print the results of a run, and what has stopped it; on rank 0."""
    run_dir, last_record = run.outputs.run_dir, run.progress.record
    if not run_dir:
        return
    if stopped and stopped.number:
        LOG.error(f"{stopped}; {onward.of_left(run_dir.path)}")
        return
    if last_record and not quiet:
        epochs = [record for record in metrics.read(run_dir.path) if record["epoch"] > run_dir.begun]
        say(f"\n{table(epochs)}\n\n{pages_table(last_record)}")
    if not quiet:
        early = f"ended early: {stopped or run.progress.stop}\n" if run.progress.stop else ""
        say(f"\n{early}{run_dir.path}")
