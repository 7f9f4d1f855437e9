"""What commands over MPI ranks share: errors that are told once, and no rank left waiting."""

import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import sleep

from mpi4py import MPI

from psframe import comms
from psframe.cluster import AgreedError, Cluster, join
from psframe.errors import UserError
from psframe.memory.gates import PeerLost
from psframe.memory.link import LeaderEnded
from psframe.parser import Parser
from psframe.record.view import say


def helped(cluster: Cluster, parser: Parser, argv: Sequence[str]) -> bool:
    """Whether rank 0 was asked for help; it prints it. All ranks must call."""
    asked = cluster.agree(lambda: "-h" in argv or "--help" in argv)
    if asked and cluster.rank == 0:
        say(parser.format_help())
    return bool(asked)


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
        with suppress(MPI.Exception):  # of ranks that are not all there any more
            cluster.comm.Barrier()  # so that no launcher ends ranks that have yet to exit 2 themselves
        return 2


def guarded(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Run ``main``; an exception on any rank names the rank and aborts the job, so that no other rank waits."""
    # Ctrl-C ends a rank at once: Python's handler would wait for an MPI call to return, which no longer can
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    rank = MPI.COMM_WORLD.rank
    try:
        return comms.end(main(argv))
    except LeaderEnded:
        # it was killed, or tells why just now and aborts the job; if it does not, one rank says so, or N would
        sleep(2)
        message = "psframe: the first rank of a node has ended, and with it the job\n" if rank == 1 else ""
        status = 1
    except PeerLost as lost:
        if not lost.speaks:
            sleep(2)  # another rank tells of it just now, and aborts the job
        message, status = f"psframe: {lost}; continue with checkpoint.resume=auto\n" if lost.speaks else "", 1
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
