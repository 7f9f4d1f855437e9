"""What commands over MPI ranks share: errors that are told once, and no rank left waiting."""

import argparse
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from time import sleep
from typing import Any

from mpi4py import MPI

from psframe.cluster import AgreedError, Cluster, join
from psframe.errors import UserError
from psframe.memory.link import LeaderEnded


class Parser(argparse.ArgumentParser):
    """Raises a UserError for a mistake in the command line, and leaves ``-h`` to the caller."""

    def __init__(self, usage: str, description: str):
        super().__init__(usage=usage, description=description, add_help=False)
        self.add_argument("-h", "--help", action="store_true", help="print this, and exit")

    def error(self, message: str) -> Any:
        raise UserError(f"the command must be `{self.usage}`, got an error ({message}); see --help")


def run(body: Callable[[Cluster], int], world: MPI.Comm | None = None) -> int:
    """Run ``body`` on the ranks of ``world`` (all by default), which must all call; return the exit status.

    An error that all ranks agree on is printed once, and the status is 2.
    """
    cluster = join(world)
    try:
        return body(cluster)
    except AgreedError as error:
        if cluster.rank == 0:
            print(f"psframe: {error}", file=sys.stderr, flush=True)
        cluster.comm.Barrier()  # so that no launcher ends ranks that have yet to exit 2 themselves
        return 2


def guarded(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Run ``main``; an exception on any rank names the rank and aborts the job, so that no other rank waits."""
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
