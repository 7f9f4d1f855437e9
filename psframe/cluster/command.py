"""What commands over MPI ranks share: errors that are told once, and no rank left waiting."""

import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import sleep

from mpi4py import MPI

from psframe.cluster import communicators, startup
from psframe.cluster.cluster import AgreedError, Cluster, join
from psframe.cluster.deadline import NodeLost
from psframe.cluster.gates import PeerLost
from psframe.cluster.mpi_start import tells
from psframe.cluster.node_channel import LeaderEnded
from psframe.cluster.parser import Parser
from psframe.errors import sentence
from psframe.record.view import say

TELL_S = 4  # until a job of which a rank has told is aborted, and its launcher ended
_again = ", before anything was trained; start again"  # what to do where a rank was lost


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
    try:
        return communicators.end(main(argv))
    except BaseException as error:
        return give_up(error)


def give_up(error: BaseException) -> int:
    """Say what has ended this rank, where no other one does, and abort the job; return the exit status."""
    message, status = _last_words(error, MPI.COMM_WORLD.rank)
    sys.stdout.flush()
    sys.stderr.write(message)
    sys.stderr.flush()
    sleep(0.5)  # a launcher that is told to abort drops what it has not read by then
    if isinstance(error, NodeLost) or startup.tolerant():
        startup.end_launcher(after_s=2)  # Open MPI's waits for its daemon there, or for ranks that look for this one
    MPI.COMM_WORLD.Abort(status)
    return status


def training_begins() -> None:
    """Take note that a rank that dies from now on may leave a checkpoint to continue from."""
    global _again
    _again = "; continue with checkpoint.resume=auto"


def _last_words(error: BaseException, rank: int) -> tuple[str, int]:
    """Return what this rank says of an error, "" where another one does, and the status to abort with.

    That one aborts the job just now; if it does not, this rank does so later.
    """
    if isinstance(error, LeaderEnded):  # it was killed, or tells why just now
        sleep(2)
        return f"psframe: the first rank of a node has ended, and with it the job{_again}\n" if rank == 1 else "", 1
    if isinstance(error, PeerLost) or communicators.is_loss(error):
        told = str(error) if isinstance(error, PeerLost) else "a rank has died, as MPI tells"
        speaks = error.speaks if isinstance(error, PeerLost) else communicators.speaker() or _must_speak()
        if not speaks:
            sleep(2)
        return f"psframe: {told}{_again}\n" if speaks else "", 1
    if told := sentence(error):
        return f"psframe: rank {rank}: {told}\n", 2
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    return "".join(f"rank {rank}: {line}\n" for line in lines), 1


def _must_speak() -> bool:
    """Wait for the first rank of all to tell of a loss, and abort the job; return whether this rank is to do so.

    MPI may let that one wait on.
    """
    sleep(TELL_S)
    return not startup.launcher_ended() and tells()
