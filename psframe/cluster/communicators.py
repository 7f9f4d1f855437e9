"""The communicators of a job, so that all of them can be revoked when a rank is lost."""

import os
import sys
from contextlib import suppress
from time import sleep

from mpi4py import MPI

from psframe.cluster import startup

#: what MPI says of a call that a dead rank, or one that has heard of it, has left (MPI Forum, User-Level Failure
#: Mitigation; in MPI-5 a chapter of its own)
LOST = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)

KNOWN_S, LOOK_S = 2.0, 0.02  # until MPI knows of a rank that is lost, and between two looks

_made: list[MPI.Comm] = []
_revoked = False
_forsaken = False


def keep(comm: MPI.Comm) -> MPI.Comm:
    """Take note of a communicator, and return it."""
    if comm != MPI.COMM_NULL:
        _made.append(comm)
    return comm


def revoke() -> None:
    """Let every call on a communicator that was kept return, on all ranks, with an error."""
    global _revoked
    _revoked = True
    for comm in _made:
        with suppress(MPI.Exception):
            comm.Revoke()
    _made.clear()


def forsake() -> None:
    """Do without a whole node: the launcher will wait for it."""
    global _forsaken
    _forsaken = True


def end(status: int) -> int:
    """Return the exit status; or end this process with it, where ranks are lost, or the launcher.

    MPI_Finalize may wait for them for ever (Open MPI 5.0, issue 11404), and is left out.
    """
    if not _revoked and not startup.launcher_ended():
        return status
    if _forsaken and MPI.COMM_WORLD.rank == 0:
        print(
            "psframe: done; mpirun waits for the node that is lost, and is ended with a status of its own",
            file=sys.stderr,
            flush=True,
        )
        startup.end_launcher()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def speaker() -> bool:
    """Whether this rank is the first of those that MPI takes for alive."""
    dead = MPI.COMM_WORLD.Get_failed()
    every = MPI.COMM_WORLD.Get_group()
    lost = set(MPI.Group.Translate_ranks(dead, range(dead.size), every))
    return MPI.COMM_WORLD.rank == min(set(range(every.size)) - lost)


def _is_harmed(comm: MPI.Comm) -> bool:
    try:
        return bool(comm.Is_revoked() or comm.Get_failed().size)
    except MPI.Exception:
        return False  # it was freed


def is_loss(error: BaseException) -> bool:
    """Whether MPI says that a rank is lost: by the error, or soon after it.

    Open MPI 5.0 gives MPI_ERR_OTHER where a collective fails in the midst of its messages, before it knows why.
    """
    if not isinstance(error, MPI.Exception):
        return False
    if error.Get_error_class() in LOST:
        return True
    for _ in range(round(KNOWN_S / LOOK_S) if startup.tolerant() else 0):
        if any(map(_is_harmed, _made or [MPI.COMM_WORLD])):  # none was kept before the first of them is made
            return True
        MPI.COMM_SELF.Iprobe()  # MPI hears of it in a call of its own
        sleep(LOOK_S)
    return False
