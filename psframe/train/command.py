"""The command ``psframe.train``: plan and build a run, train it, and print its results (:func:`main`)."""

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from psframe.cluster import begin
from psframe.cluster.cluster import Cluster
from psframe.cluster.command import helped, run, training_begins
from psframe.cluster.parser import Parser
from psframe.record import metrics, onward
from psframe.record.view import pages_table, say, table

if TYPE_CHECKING:
    from psframe.train.run import Run


def _parser() -> Parser:
    usage = "mpirun -n N python -m psframe.train CONFIG [key.path=value ...]"
    example = "mpirun -n 4 python -m psframe.train config.yaml sync.mode=allreduce"
    parser = Parser(usage, "Train a network as a config says.", example)
    parser.add_argument("config", nargs="?", help="a YAML file")
    parser.add_argument("overrides", nargs="*", help="key.path=value, as train.epochs=3")
    parser.add_argument("--dry-run", action="store_true", help="print the resolved config and its memory, and exit")
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    return parser


def _arguments(parser: Parser, argv: Sequence[str]) -> dict[str, Any]:
    arguments = vars(parser.parse_intermixed_args(list(argv)))
    if arguments["config"] is None:
        parser.error("it names no config")
    return arguments


def main(argv: Sequence[str], world: MPI.Comm | None = None) -> int:
    """Run the command on the ranks of ``world`` (all by default), which must all call; return the exit status."""
    return run(lambda cluster: _command(cluster, argv), world)


def _command(cluster: Cluster, argv: Sequence[str]) -> int:
    parser = _parser()
    if helped(cluster, parser, argv):
        return 0
    arguments = cluster.run_on_root(lambda: _arguments(parser, argv))

    with begin.importing():
        planning = cluster.run_on_all(lambda: import_module("psframe.train.plan.plan"))
    plan = planning.make(cluster, arguments["config"], arguments["overrides"])
    if arguments["dry_run"]:
        from psframe.train import dry_run

        report = dry_run.report(cluster, plan)
        if cluster.rank == 0:
            say(report)
        return 0
    with begin.importing():  # slow imports: config errors are reported before them
        assemble, recovery, epoch = cluster.run_on_all(_modules)
    training_run = assemble.run(cluster, plan, arguments["quiet"])
    training_begins()
    try:
        training_run = recovery.trained(training_run, plan, _train)
    except epoch.Stopped as stopped:
        if cluster.rank == 0:
            hint = f"; {onward.of_left(training_run.outputs.run_dir.path)}" if training_run.outputs.run_dir else ""
            print(f"psframe: {stopped}{hint}", file=sys.stderr, flush=True)
        return 128 + stopped.number
    run_dir, last_record = training_run.outputs.run_dir, training_run.progress.record
    if run_dir and last_record and not arguments["quiet"]:
        epochs = [record for record in metrics.read(run_dir.path) if record["epoch"] > run_dir.epoch]
        say(f"\n{table(epochs)}\n\n{pages_table(last_record)}\n\n{run_dir.path}")
    training_run.cluster.barrier()  # a rank that ends without MPI_Finalize counts as dead
    return 0


def _modules() -> list[Any]:
    """Import the modules of a run, and load the Numba compiler."""
    names = ("train.build.assemble", "train.recovery", "train.epoch", "train.loop", "nn.jit")
    *modules, _, jit = [import_module(f"psframe.{name}") for name in names]
    jit.load()
    return modules


def _train(run: "Run") -> None:
    from psframe.cluster.signals import Signals
    from psframe.train import loop

    keys, where = run.config.checkpoint, ""
    if run.outputs.run_dir:  # on rank 0
        where = onward.of_running(run.outputs.run_dir.path, bool(keys.every_epochs or keys.every_seconds))
    with Signals(run.cluster.halt, speaks=run.cluster.rank == 0, where=where):
        loop.train(run)
