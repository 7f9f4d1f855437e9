"""What commands over MPI ranks share: errors that are told once, and no rank left waiting."""

import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import sleep

from mpi4py import MPI

from psframe import comms, startup
from psframe.cluster import AgreedError, Cluster, join
from psframe.errors import UserError
from psframe.memory.gates import PeerLost
from psframe.memory.link import LeaderEnded
from psframe.parser import Parser
from psframe.patience import NodeLost
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
    except BaseException as error:
        message, status = _last_words(error, rank)
        is_unreachable = isinstance(error, NodeLost)
    sys.stdout.flush()
    sys.stderr.write(message)
    sys.stderr.flush()
    sleep(0.5)  # a launcher that is told to abort drops what it has not read by then
    if is_unreachable or startup.tolerant():
        startup.end_launcher(after_s=2)  # Open MPI's waits for its daemon there, or for ranks that look for this one
    MPI.COMM_WORLD.Abort(status)
    return status


def _last_words(error: BaseException, rank: int) -> tuple[str, int]:
    """Return what this rank says of an error, "" where another one does, and the status to abort with.

    That one aborts the job just now; if it does not, this rank does so later.
    """
    if isinstance(error, LeaderEnded):  # it was killed, or tells why just now
        sleep(2)
        return "psframe: the first rank of a node has ended, and with it the job\n" if rank == 1 else "", 1
    if isinstance(error, PeerLost) or comms.is_loss(error):
        told = str(error) if isinstance(error, PeerLost) else "a rank has died, as MPI tells"
        speaks = error.speaks if isinstance(error, PeerLost) else comms.speaker()
        if not speaks:
            sleep(2)
        return f"psframe: {told}; continue with checkpoint.resume=auto\n" if speaks else "", 1
    if isinstance(error, UserError):
        return f"psframe: rank {rank}: {error}\n", 2
    lines = traceback.format_exc().rstrip().splitlines()
    return "".join(f"rank {rank}: {line}\n" for line in lines), 1
