"""Start of a fault-tolerant MPI (:func:`start`): the other ranks wait forever for one that is killed before or in it.

Neither MPI nor its launcher reports such a death (Open MPI 5.0 under ``--with-ft ulfm``). /proc shows it for ranks of
this node; the wait for those of other nodes ends after :data:`START_S`.
"""

import ctypes
import os
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event as ThreadEvent
from threading import Thread
from time import monotonic, sleep, time
from types import TracebackType
from typing import Any

from psframe.cluster.output import OTHERS_S
from psframe.cluster.siblings import Siblings, stat
from psframe.record import incident

START_S = 120.0  # seconds allowed for the start of an MPI in which a rank may have died without a word
#: the same where the launcher tells of deaths: environment variable, and its default; imports may take long
LIMIT, LIMIT_S = "PSFRAME_START_S", 600.0
NEW_S = 3.0  # seconds without a new rank of this node until those never seen count as dead
LOOK_S = 0.25  # seconds between two checks, while ranks are unseen or the kernel cannot report a death (before 5.3)
GRACE_S = 0.5  # seconds for a start that is just ending
#: seconds from a rank's report until all leave, as a launcher may end with them before it has read the report; and
#: until the launcher is ended, which has their status by then
LEAVE_S, END_S = 1.0, 2.0


def tells(environ: Mapping[str, str] = os.environ) -> bool:
    """Return True if this is the node's first rank to report the job's end: it leaves a file in the launcher's folder.

    If that is impossible, the node's rank 0 reports.
    """
    name = f"psframe-told-{environ.get('PMIX_NAMESPACE')}"
    try:
        os.close(os.open(Path(environ["PMIX_SERVER_TMPDIR"], name), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        return True
    except FileExistsError:
        return False
    except (KeyError, OSError):
        return environ.get("OMPI_COMM_WORLD_LOCAL_RANK", "0") == "0"


class Watch:
    """Context in which the end of a rank of this node, or START_S, ends this one with a message and status 1.

    Parameters
    ----------
    siblings : Siblings
    end_job : callable
        Called by the reporting rank with the seconds until the launcher here must end.
    """

    def __init__(self, siblings: Siblings, end_job: Callable[[float], None]):
        self.siblings, self.end_job = siblings, end_job
        self.poll, self.fds = select.poll(), dict[int, int]()
        self.thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self.until, self.done = os.pipe()
        self.poll.register(self.until, select.POLLIN)
        with suppress(RuntimeError):  # no thread can be started
            self.thread.start()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self.done)
        if self.thread.ident:
            self.thread.join()
        for fd in (self.until, *self.fds.values()):
            os.close(fd)

    def _run(self) -> None:
        # rank 0 gives up first: it reports for all, and ends the launcher if it can
        deadline, message = monotonic() + START_S * (1 if self.siblings.rank == 0 else 1.5), ""
        fresh, n_known = monotonic(), 0
        while not message:
            self.siblings.look()
            now = monotonic()
            if len(self.siblings.known) > n_known:
                fresh, n_known = now, len(self.siblings.known)
            message = self._loss(now - fresh > NEW_S)
            if not message and now > deadline:
                message = f"MPI must start within {START_S:g} s, and did not: a rank on another node may have died"
            if not message and self._is_over(LOOK_S if not self._follow() else deadline - now):
                return
        if not self._is_over(GRACE_S, ranks=False):
            self._end(message)

    def _loss(self, is_settled: bool) -> str:
        """Return a message with the dead ranks, "" if all live."""
        lost = sorted(self.siblings.lost)
        if lost:
            subject = f"rank {lost[0]} has" if len(lost) == 1 else f"ranks {', '.join(map(str, lost))} have"
        elif is_settled and self.siblings.n_missing:
            subject = "a rank has" if self.siblings.n_missing == 1 else f"{self.siblings.n_missing} ranks have"
        else:
            return ""
        return f"{subject} died on {os.uname().nodename} while MPI started, before anything was trained"

    def _follow(self) -> bool:
        """Let the kernel report the end of every rank of this node; return True if it will."""
        for rank, pid in self.siblings.known.items():
            if rank not in self.fds:
                try:
                    self.fds[rank] = os.pidfd_open(pid)
                except (OSError, AttributeError):  # no such call, no more descriptors, or the process has just ended
                    return False
                self.poll.register(self.fds[rank], select.POLLIN)
        return bool(self.siblings.known) and not self.siblings.n_missing

    def _is_over(self, seconds: float, ranks: bool = True) -> bool:
        """Wait for ``seconds``; return True if MPI has started. With ``ranks``, a rank's end also ends the wait."""
        if not ranks:
            self.poll = select.poll()
            self.poll.register(self.until, select.POLLIN)
        return any(fd == self.until for fd, _ in self.poll.poll(max(0, round(seconds * 1e3))))

    def _end(self, told: str) -> None:
        if tells():
            print(f"psframe: {told}; start again", file=sys.stderr, flush=True)
            self.end_job(END_S)
        sleep(LEAVE_S)
        os._exit(1)  # the launcher would return 0 for a rank that ends by a signal


def limit_s() -> float:
    """Return the seconds that a job may take to start; a value that cannot be one counts as none."""
    try:
        seconds = float(os.environ.get(LIMIT, LIMIT_S))
    except ValueError:
        return LIMIT_S
    return seconds if 1 <= seconds < 1e9 else LIMIT_S


class Limit:
    """Context in which LIMIT_S ends this rank, for an MPI whose launcher ends all ranks when one dies.

    Parameters
    ----------
    siblings : Siblings
    end : callable
        Ends the job.
    """

    def __init__(self, siblings: Siblings, end: Callable[[], object]):
        self.siblings, self.end, self.begun = siblings, end, ThreadEvent()
        self.thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        with suppress(RuntimeError):  # no thread can be started
            self.thread.start()

    def __exit__(self, *raised: object) -> None:
        self.begun.set()

    def _run(self) -> None:
        for _ in range(round(limit_s())):  # counts, and not time, in which the job may have been suspended
            if self.begun.wait(1.0):
                return
        self.siblings.look()
        stopped = self.siblings.stopped()
        speaks = self.siblings.rank == min(set(self.siblings.known) - stopped, default=self.siblings.rank)
        if speaks:
            message = self._message(sorted(stopped))
            path = incident.write([Path()], _told(self.siblings, message))
            more = f"; psframe why {path} has more" if path else ""
            print(f"psframe: {message}{more}", file=sys.stderr, flush=True)
            self.end()
        sleep(LEAVE_S if speaks else OTHERS_S)
        os._exit(1)

    def _message(self, stopped: Sequence[int]) -> str:
        seconds = limit_s()
        named = f"rank{'s' * (len(stopped) > 1)} {', '.join(map(str, stopped))}"
        why = f"{named} was stopped by a signal" if stopped else "a rank is stuck, or cannot be reached"
        return f"MPI must start within {seconds:g} s ({LIMIT}), and did not on {os.uname().nodename}: {why}"


def _told(siblings: Siblings, message: str) -> dict[str, Any]:
    """Return what is known of the ranks of this node, as an incident."""
    ranks = []
    for rank, pid in sorted(siblings.known.items()):
        state = "gone"
        with suppress(OSError, IndexError):
            state = stat(siblings.proc, pid)[1]
        ranks.append({"rank": rank, "pid": pid, "process_state": state})
    facts = {"host": os.uname().nodename, "node": 0}
    return {
        "reason": "start",
        "rank": siblings.rank,
        "message": message,
        "time": time(),
        "facts": facts,
        "ranks": ranks,
    }


def begin(mpi: Any, end: Callable[[], object]) -> None:
    """Start an MPI that ends with its first dead rank; ``end`` ends the job if it does not start. All ranks must call.

    Raises RuntimeError if MPI does not start.
    """
    with Limit(Siblings(), end):
        _init(mpi)


def start(mpi: Any, end_job: Callable[[float], None]) -> None:
    """Start MPI while watching the ranks of this node, which goes on when one dies. All ranks must call.

    Parameters
    ----------
    mpi : module
        ``mpi4py.MPI``.
    end_job : callable
        Ends the launcher above this process, after the given seconds.

    Raises
    ------
    RuntimeError
        If MPI does not start.
    """
    with Watch(Siblings(), end_job):
        _init(mpi)


def _init(mpi: Any) -> None:
    """Start MPI so that other threads run meanwhile, which mpi4py's own start would not allow."""
    try:
        begin = ctypes.CDLL(mpi.__file__).MPI_Init_thread
    except (OSError, AttributeError):  # MPI is hidden inside mpi4py
        mpi.Init_thread()
        return
    failed = begin(None, None, mpi.THREAD_MULTIPLE, ctypes.byref(ctypes.c_int()))
    if failed:
        raise RuntimeError(f"MPI_Init_thread ended with error {failed}")
    for comm in (mpi.COMM_SELF, mpi.COMM_WORLD):
        comm.Set_errhandler(mpi.ERRORS_RETURN)  # as mpi4py does after its own
