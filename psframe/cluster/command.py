"""Frame of commands over MPI ranks (:func:`run`): errors are reported once, and no rank is left waiting."""

import signal
import traceback
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import sleep
from typing import Any

from mpi4py import MPI

from psframe.cluster import communicators, startup
from psframe.cluster.cluster import AgreedError, Cluster
from psframe.cluster.deadline import NodeLost
from psframe.cluster.flight.recorder import RECORDER
from psframe.cluster.gates import PeerLost
from psframe.cluster.joining import join
from psframe.cluster.mpi_start import tells
from psframe.cluster.node_channel import LeaderEnded
from psframe.cluster.output import say, until_read
from psframe.errors import sentence
from psframe.record import log
from psframe.record.library_warnings import LIBRARIES
from psframe.record.log import LOG

LOSS = "a rank has died, as MPI tells"
TELL_S = 4  # seconds from a rank's report until the job is aborted and its launcher has ended
_report: Callable[[str], None] | None = None  # takes what ends this rank, besides stderr
_again = ", before anything was trained; start again"  # advice in the message about a lost rank


def asked(cluster: Cluster, arguments: Callable[[], dict[str, Any]]) -> Namespace | None:
    """Return what ``arguments()`` parses on rank 0; None if that has printed the help. All ranks must call."""

    def parsed() -> dict[str, Any] | None:
        try:
            return arguments()
        except SystemExit:  # argparse's way to end after the help
            return None

    found = cluster.run_on_root(parsed)
    return None if found is None else Namespace(**found)


def run(body: Callable[[Cluster], int], world: MPI.Comm | None = None) -> int:
    """Run ``body`` on the ranks of ``world`` (default: all), which must all call; return the exit status.

    An error that all ranks agree on is printed once; the status is then 2.
    """
    cluster = join(world)
    try:
        return body(cluster)
    except AgreedError as error:
        if communicators.reports(cluster.rank):
            LOG.error(str(error))
        with suppress(MPI.Exception):  # some ranks may be gone
            cluster.comm.Barrier()  # else a launcher may end ranks before they exit with 2
        return 2


def guarded(main: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Run ``main``; an exception on any rank names the rank and aborts the job, so that no other rank waits."""
    # Ctrl-C ends a rank at once: Python's handler would wait for an MPI call that can no longer return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    RECORDER.ends_process = True
    try:
        return communicators.end(main(argv))
    except BaseException as error:
        return give_up(error)


def report_to(tell: Callable[[str], None]) -> None:
    """Let ``tell`` take what :func:`give_up` reports, too."""
    global _report
    _report = tell


def give_up(error: BaseException) -> int:
    """Report the error that ends this rank, unless another rank does, and abort the job; return the exit status.

    Any thread may call.
    """
    message, status = _last_words(error, MPI.COMM_WORLD.rank)
    if message and _report:
        _report(message)
    notes = bool(message) and not getattr(error, "dead", False)  # the keeper has seen a death itself
    # the message first, as the launcher may end this rank soon; without a run, the file may lie anywhere
    path = RECORDER.run or _noted(error, message) if notes else ""
    say(_with_path(message, path) if path else message)  # where nobody reads it, the job must end all the same
    if message:
        LOG.error(message.strip().removeprefix("psframe: "), extra={"told": True})
        LIBRARIES.log_rest(shown=True)
    if notes and RECORDER.run:
        _noted(error, message)
    log.flush()
    until_read()
    if isinstance(error, NodeLost) or startup.tolerant():
        startup.end_launcher(after_s=2)  # Open MPI's waits for a lost daemon, or for ranks that look for this one
    MPI.COMM_WORLD.Abort(status)
    return status


def _with_path(message: str, path: str) -> str:
    """Return a message with what tells more, in the same line if it is a sentence."""
    how = f"`psframe why {path}` tells more"
    if message.startswith("psframe: "):
        return f"{message.rstrip()}; {how}\n"
    return f"{message}rank {MPI.COMM_WORLD.rank}: {how}\n"


def _noted(error: BaseException, message: str) -> str:
    """Let the keeper write an incident of an error; return its path, "" where there is none."""
    is_late, is_loss = isinstance(error, PeerLost), isinstance(error, LeaderEnded) or LOSS in message
    words = message.strip() if is_late or is_loss or sentence(error) else f"{type(error).__name__}: {error}"
    trace = "".join(traceback.format_tb(error.__traceback__))
    return RECORDER.incident("loss" if is_loss else "deadline" if is_late else "exception", words, trace)


def training_begins() -> None:
    """Note that a rank that dies from now on may leave a checkpoint to continue from."""
    global _again
    _again = "; continue with checkpoint.resume=auto"


def _last_words(error: BaseException, rank: int) -> tuple[str, int]:
    """Return this rank's message about an error, "" if another rank reports it, and the status for the abort.

    The reporting rank aborts the job at once; if it does not, this rank does so later.
    """
    if isinstance(error, LeaderEnded):  # it was killed, or is reporting its error now
        sleep(TELL_S)
        speaks = communicators.speaker() if startup.tolerant() else rank == 1
        return f"psframe: the first rank of a node has ended, and with it the job{_again}\n" if speaks else "", 1
    if isinstance(error, PeerLost) or communicators.is_loss(error):
        if isinstance(error, PeerLost):
            message, speaks, is_named = str(error), error.speaks, bool(error.ranks)
        else:
            message, is_named = LOSS, True
            speaks = communicators.speaker() or _must_speak()
        if not speaks:  # another one does, perhaps on a node that is busy
            sleep(2 * TELL_S)
        elif not is_named:  # the lost one may report its own error now
            sleep(2)
        return f"psframe: {message}{_again}\n" if speaks else "", 1
    if message := sentence(error):
        return f"psframe: rank {rank}: {message}\n", 2
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    return "".join(f"rank {rank}: {line}\n" for line in lines), 1


def _must_speak() -> bool:
    """Wait for the first living rank to report a loss and abort the job; return True if this rank must do so.

    MPI may leave the first one waiting.
    """
    sleep(TELL_S)
    return not startup.launcher_ended() and tells()
