"""``mpirun -n N python -m psframe.train CONFIG [key.path=value ...]``: assemble, run, abort every rank on an error."""

import argparse
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from time import sleep
from typing import Any

try:
    from mpi4py import MPI
except (ImportError, RuntimeError) as _error:
    if os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", "0")) == "0":
        _reason = str(_error).splitlines()[0]
        print(
            f"psframe: an MPI must be installed, got none ({_reason}); pip install mpich, or load one", file=sys.stderr
        )
    sys.exit(2)

from psframe.affinity import limit_threads

limit_threads(MPI.COMM_WORLD)  # before anything imports NumPy

from psframe.cluster import AgreedError, Cluster, join  # noqa: E402
from psframe.errors import UserError  # noqa: E402
from psframe.memory.link import LeaderEnded  # noqa: E402
from psframe.record.view import pages_table, say, table  # noqa: E402


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UserError(f"the command must be `{self.usage}`, got an error ({message}); see --help")


def _parser() -> _Parser:
    usage = "mpirun -n N python -m psframe.train CONFIG [key.path=value ...]"
    parser = _Parser("psframe.train", usage=usage, description="Train a network as a config says.", add_help=False)
    parser.add_argument("config", nargs="?", help="a YAML file")
    parser.add_argument("overrides", nargs="*", help="key.path=value, as train.epochs=3")
    parser.add_argument("--dry-run", action="store_true", help="print the resolved config and its memory, and exit")
    parser.add_argument("--quiet", action="store_true", help="print errors only")
    parser.add_argument("-h", "--help", action="store_true", help="print this, and exit")
    return parser


def _arguments(parser: _Parser, argv: Sequence[str]) -> dict[str, Any]:
    arguments = vars(parser.parse_intermixed_args(list(argv)))
    if arguments["config"] is None:
        parser.error("it names no config")
    return arguments


def main(argv: Sequence[str], world: MPI.Comm | None = None) -> int:
    """Run the command on the ranks of ``world`` (all by default), which must all call; return the exit status."""
    cluster = join(world)
    try:
        return _command(cluster, argv)
    except AgreedError as error:
        if cluster.rank == 0:
            print(f"psframe: {error}", file=sys.stderr, flush=True)
        cluster.comm.Barrier()  # so that no launcher ends ranks that have yet to exit 2 themselves
        return 2


def _command(cluster: Cluster, argv: Sequence[str]) -> int:
    parser = _parser()
    if cluster.agree(lambda: "-h" in argv or "--help" in argv):
        if cluster.rank == 0:
            say(parser.format_help())
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
    from psframe import assemble, engine

    run = assemble.run(cluster, judged, arguments["quiet"])
    records = engine.train(run)
    if run.run_dir and not arguments["quiet"]:
        say(f"\n{table(records)}\n\n{pages_table(records[-1])}\n\n{run.run_dir.path}")
    return 0


def guarded(argv: Sequence[str]) -> int:
    """Run :func:`main`; an exception on any rank names the rank and aborts the job, so that no other rank waits."""
    # Ctrl-C ends a rank at once: Python's handler would wait for an MPI call to return, which no longer can
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    rank = MPI.COMM_WORLD.rank
    try:
        return main(argv)
    except LeaderEnded:
        # it was killed, or tells why just now and aborts the job; if it does not, one rank says so, or N would
        sleep(2)
        message = "psframe: the first rank of a node has ended, and with it the job\n" if rank == 1 else ""
        status = 1
    except UserError as error:
        message, status = f"psframe: rank {rank}: {error}\n", 2
    except BaseException:
        lines = traceback.format_exc().rstrip().splitlines()
        message, status = "".join(f"rank {rank}: {line}\n" for line in lines), 1
    sys.stdout.flush()
    sys.stderr.write(message)
    sys.stderr.flush()
    sleep(0.5)  # a launcher that is told to abort drops what it has not read by then
    MPI.COMM_WORLD.Abort(status)
    return status


if __name__ == "__main__":
    sys.exit(guarded(sys.argv[1:]))
