"""Registry of a job's communicators (:func:`keep`), so that all can be revoked when a rank is lost."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import sleep
from typing import Any, TypeVar

from mpi4py import MPI

from psframe.cluster import startup
from psframe.cluster.output import say
from psframe.cluster.watched import Watched
from psframe.record import log

#: error classes of an MPI call that a rank has left, as it died or learned of a death (MPI Forum, User-Level Failure
#: Mitigation; its own chapter in MPI-5)
LOST = (MPI.ERR_PROC_FAILED, MPI.ERR_PROC_FAILED_PENDING, MPI.ERR_REVOKED)

KNOWN_S, LOOK_S = 2.0, 0.02  # seconds until MPI knows of a lost rank, and between two checks

Comm = TypeVar("Comm", bound=MPI.Comm)


class _OfRank(threading.local):
    """What a rank knows of its job's communicators. Virtual ranks are threads; of a real one a single thread asks.

    Attributes
    ----------
    made : list of (MPI.Comm, MPI.Comm)
        Registered communicators, each as it was returned, and as it was given.
    leads : bool or None
        After a loss, True on the rank that is rank 0 then.
    forsaken : bool
        True if the launcher waits for a node that is lost.
    """

    def __init__(self) -> None:
        self.made: list[tuple[MPI.Comm, MPI.Comm]] = []
        self.revoked, self.forsaken = False, False
        self.leads: bool | None = None


_RANK = _OfRank()


class Checked(Watched):
    """Communicator whose calls report every loss.

    Open MPI 5.0 divides a short allgatherv into a gatherv and a broadcast, and drops the error of the latter: the call
    seems to succeed, but leaves gaps, in which :meth:`allgather` may find an earlier message.
    """

    def Allgatherv(self, sendbuf: Any, recvbuf: Any) -> None:
        super().Allgatherv(sendbuf, recvbuf)
        self._check()

    def allgather(self, sendobj: Any) -> list[Any]:
        try:
            return super().allgather(sendobj)
        finally:
            self._check()  # before the error of an object that cannot be read

    def _check(self) -> None:
        if self.Is_revoked():
            raise MPI.Exception(MPI.ERR_REVOKED)
        if _has_failed(self):
            raise MPI.Exception(MPI.ERR_PROC_FAILED)


def keep(comm: Comm) -> Comm:
    """Register a communicator, and return it, :class:`Watched`, or :class:`Checked` where MPI outlives a rank.

    A user of it that frees it frees the returned object, and tells by it.
    """
    kept: Any = comm
    if comm != MPI.COMM_NULL:
        if isinstance(comm, MPI.Intracomm):
            kept = Checked(comm) if startup.tolerant() else Watched(comm)
        _RANK.made.append((kept, comm))
    return kept


@contextmanager
def freed() -> Iterator[None]:
    """Free the communicators that are registered within a context, of which MPI has some thousands, at its end.

    Nothing may use them after that. All ranks must leave the context together, also by an error that all raise.
    """
    before = n_kept()
    try:
        yield
    except Exception as error:
        if not getattr(error, "agreed", False):
            raise  # the job ends, and other ranks may be anywhere
        free_after(before)
        raise
    free_after(before)


def n_kept() -> int:
    """Return the number of registered communicators, for :func:`free_after`."""
    return len(_RANK.made)


def free_after(before: int) -> None:
    """Free the communicators registered since there were ``before``. All ranks that have them must call."""
    for kept, comm in reversed(_RANK.made[before:]) if not _RANK.revoked else ():
        if kept not in (MPI.COMM_WORLD, MPI.COMM_SELF, MPI.COMM_NULL):  # null: freed by its owner
            comm.Free()  # by whom it was given sees that it is freed
    del _RANK.made[before:]


def revoke() -> None:
    """Make every call on a registered communicator return with an error, on all ranks."""
    _RANK.revoked = True
    for comm, _ in _RANK.made:
        with suppress(MPI.Exception):
            comm.Revoke()
    _RANK.made.clear()


def survived(leads: bool, is_node_lost: bool) -> None:
    """Note that the job goes on without a rank, with this one as rank 0 if it ``leads``.

    If an entire node is lost, the launcher will wait for it.
    """
    _RANK.leads, _RANK.forsaken = leads, _RANK.forsaken or is_node_lost


def reports(rank: int) -> bool:
    """Return True if this rank, ``rank`` at the start, reports what all know: rank 0, or the one that leads since."""
    return rank == 0 if _RANK.leads is None else _RANK.leads


def end(status: int) -> int:
    """Return the exit status; or end this process with it if ranks or the launcher are lost.

    MPI_Finalize may wait for them forever (Open MPI 5.0, issue 11404), and is skipped.
    """
    log.flush()
    if not _RANK.revoked and not startup.launcher_ended():
        return status
    if _RANK.forsaken and _RANK.leads:
        say("psframe: done; mpirun waits for the node that is lost, and is ended with a status of its own\n")
        startup.end_launcher()
    say("")  # what is left
    os._exit(status)


def numbers(comm: Any) -> list[int]:
    """Return the number in the job, which it was started with, of each rank of a communicator."""
    if hasattr(comm, "numbers"):  # of virtual ranks
        return list(comm.numbers)
    return list(MPI.Group.Translate_ranks(comm.Get_group(), None, MPI.COMM_WORLD.Get_group()))


def speaker() -> bool:
    """Return True if this rank is the first of those that MPI considers alive."""
    dead = MPI.COMM_WORLD.Get_failed()
    group = MPI.COMM_WORLD.Get_group()
    lost = set(MPI.Group.Translate_ranks(dead, range(dead.size), group))
    return MPI.COMM_WORLD.rank == min(set(range(group.size)) - lost)


def _has_failed(comm: MPI.Comm) -> bool:
    failed = comm.Get_failed()
    n = failed.size
    failed.Free()
    return n > 0


def _is_harmed(comm: MPI.Comm) -> bool:
    try:
        return comm.Is_revoked() or _has_failed(comm)
    except MPI.Exception:
        return False  # the communicator was freed


def is_loss(error: BaseException) -> bool:
    """Return True if MPI reports a lost rank: by the error, or within KNOWN_S after it.

    Open MPI 5.0 returns MPI_ERR_OTHER if a collective fails between its messages, before MPI knows the cause.
    """
    if not isinstance(error, MPI.Exception):
        return False
    if error.Get_error_class() in LOST:
        return True
    for _ in range(round(KNOWN_S / LOOK_S) if startup.tolerant() else 0):
        # early in the start none is registered
        if any(map(_is_harmed, [kept for kept, _ in _RANK.made] or [MPI.COMM_WORLD])):
            return True
        MPI.COMM_SELF.Iprobe()  # MPI learns of a loss only inside an MPI call
        sleep(LOOK_S)
    return False


def mpi_name() -> str:
    """Return the name and version of the MPI library, in one line."""
    return MPI.Get_library_version().splitlines()[0].strip("\0 ")
