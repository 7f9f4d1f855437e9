"""``mpirun -n N python -m psframe.train CONFIG [key.path=value ...]``: assemble, run, abort every rank on an error."""

import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from psframe.startup import judge_shared_memory, tolerant, without_mpi

judge_shared_memory()
START_S = 120
if tolerant():
    signal.alarm(START_S)  # with it, MPI's start waits for ever for a rank that was killed in it

try:
    from mpi4py import MPI

    signal.alarm(0)
except (ImportError, RuntimeError) as _error:
    without_mpi(_error)

from psframe.affinity import limit_threads  # noqa: E402

limit_threads(MPI.COMM_WORLD)  # before anything imports NumPy

from psframe.cluster import Cluster  # noqa: E402
from psframe.command import guarded, helped, run  # noqa: E402
from psframe.parser import Parser  # noqa: E402
from psframe.record import metrics  # noqa: E402
from psframe.record.view import pages_table, say, table  # noqa: E402

if TYPE_CHECKING:
    from psframe.job import Run


def _parser() -> Parser:
    usage = "mpirun -n N python -m psframe.train CONFIG [key.path=value ...]"
    parser = Parser(usage, "Train a network as a config says.")
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
    arguments = cluster.agree(lambda: _arguments(parser, argv))

    from psframe import plan

    judged = plan.make(cluster, arguments["config"], arguments["overrides"])
    if arguments["dry_run"]:
        from psframe import dry_run

        report = dry_run.report(cluster, judged)
        if cluster.rank == 0:
            say(report)
        return 0
    # Numba and h5py take time to import: a bad config has been told by now
    from psframe import assemble, recovery
    from psframe.epoch import Stopped

    made = assemble.run(cluster, judged, arguments["quiet"])
    try:
        made = recovery.trained(made, judged, _train)
    except Stopped as stopped:
        if cluster.rank == 0:
            print(f"psframe: {stopped}", file=sys.stderr, flush=True)
        return 128 + stopped.number
    if made.run_dir and made.record and not arguments["quiet"]:
        epochs = [record for record in metrics.read(made.run_dir.path) if record["epoch"] > made.run_dir.epoch]
        say(f"\n{table(epochs)}\n\n{pages_table(made.record)}\n\n{made.run_dir.path}")
    made.cluster.barrier()  # one that ends without MPI_Finalize is taken for dead
    return 0


def _train(run: "Run") -> None:
    from psframe import engine
    from psframe.signals import Signals

    with Signals(run.cluster.halt, speaks=run.cluster.rank == 0):
        engine.train(run)


if __name__ == "__main__":
    sys.exit(guarded(main, sys.argv[1:]))
