"""MPI's start, where MPI outlives ranks: one that is killed before or in it is waited for for ever by the others.

Neither MPI nor its launcher tells them (Open MPI 5.0 under ``--with-ft ulfm``). /proc does, where the other ranks of
this node are seen; those of other nodes are waited for :data:`START_S`.
"""

import ctypes
import os
import select
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from types import TracebackType
from typing import Any

#: the processes that a launcher puts above its ranks
LAUNCHERS = ("mpirun", "mpiexec", "hydra", "prterun", "prted", "orterun", "orted", "srun", "slurmstepd")

START_S = 120.0  # that MPI's start may take
NEW_S = 3.0  # without a new rank of this node while some were never seen: these have died before that
LOOK_S = 0.25  # between two looks, while some were not seen yet, or the kernel does not tell of a death (before 5.3)
GRACE_S = 0.5  # for a start that comes to its end just now
#: from when one tells of it until all leave, with whom a launcher may end before it has read that; and until the
#: launcher is ended, which by then has their status
LEAVE_S, END_S = 1.0, 2.0


def process(proc: Path, pid: int) -> tuple[str, int, int]:
    """Return a process's name, its parent, and when it started, in clock ticks since the machine did."""
    name, _, fields = _stat(proc, pid)
    return name, int(fields[1]), int(fields[19])


def _stat(proc: Path, pid: int) -> tuple[str, str, list[str]]:
    """Return a process's name, its state, and the fields of its ``stat`` from that on."""
    name, _, rest = (proc / str(pid) / "stat").read_text(errors="replace").partition("(")[2].rpartition(")")
    fields = rest.split()
    return name, fields[0], fields


def launcher_of(proc: Path, pid: int) -> int:
    """Return the launcher above a process, 0 where none can be seen: a container may have processes of its own."""
    with suppress(OSError, ValueError, IndexError):
        while (pid := process(proc, pid)[1]) > 1:
            if process(proc, pid)[0].startswith(LAUNCHERS):
                return pid
    return 0


class Siblings:
    """The ranks of this node, as far as /proc shows them: what their launcher has started there, itself or by a script.

    Parameters
    ----------
    environ : mapping
        What the launcher told this rank.
    me : int
        This process.

    Attributes
    ----------
    known : dict of int to int
        By rank, the process that the launcher started for it, of those that were seen.
    lost : set of int
        Those of them that have ended.
    n_missing : int
        How many were never seen.
    """

    def __init__(self, proc: Path = Path("/proc"), environ: Mapping[str, str] = os.environ, me: int | None = None):
        self.proc, self.rank = proc, int(environ.get("OMPI_COMM_WORLD_RANK", 0))
        self.job = f"PMIX_NAMESPACE={environ.get('PMIX_NAMESPACE')}".encode()
        self.n, self.n_missing = int(environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", 1)), 0
        self.known: dict[int, int] = {}
        self.lost: set[int] = set()
        self.launcher = launcher_of(proc, os.getpid() if me is None else me)

    def look(self) -> None:
        """Find out who is there."""
        if not self.launcher:
            return
        here = self._children()
        for pid in here.difference(self.known.values()):
            rank = self._rank_of(pid)
            if rank is not None:
                self.known[rank] = pid
        self.lost = {rank for rank, pid in self.known.items() if pid not in here}
        # who does not see itself sees nobody
        self.n_missing = self.n - len(self.known) if self.rank in self.known else 0

    def _children(self) -> set[int]:
        """Return the launcher's children that live."""
        found = set()
        for entry in os.listdir(self.proc):
            with suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
                _, state, fields = _stat(self.proc, int(entry))
                if int(fields[1]) == self.launcher and state not in "ZX":
                    found.add(int(entry))
        return found

    def _rank_of(self, pid: int) -> int | None:
        """Return a process's rank in this job, None where it has none, or not yet."""
        with suppress(OSError, ValueError):
            told = (self.proc / str(pid) / "environ").read_bytes().split(b"\0")
            if self.job in told:
                return next((int(word[21:]) for word in told if word.startswith(b"OMPI_COMM_WORLD_RANK=")), None)
        return None


def tells(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this is the first rank of this node to tell how the job ended: it leaves a file in the launcher's folder.

    Where it cannot, the node's rank 0 tells.
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
    """While this is entered, a rank of this node that ends, or START_S, end this one in a sentence, with status 1.

    Parameters
    ----------
    siblings : Siblings
    end_job : callable
        Is called by who has told, with the seconds until the launcher here is to end.
    """

    def __init__(self, siblings: Siblings, end_job: Callable[[float], None]):
        self.siblings, self.end_job = siblings, end_job
        self.poll, self.fds = select.poll(), dict[int, int]()
        self.thread = Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self.until, self.done = os.pipe()
        self.poll.register(self.until, select.POLLIN)
        with suppress(RuntimeError):  # no more threads
            self.thread.start()

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        os.close(self.done)
        if self.thread.ident:
            self.thread.join()
        for fd in (self.until, *self.fds.values()):
            os.close(fd)

    def _run(self) -> None:
        # rank 0 tells for all, and ends the launcher, if it can
        until, told = monotonic() + START_S * (1 if self.siblings.rank == 0 else 1.5), ""
        fresh, n_known = monotonic(), 0
        while not told:
            self.siblings.look()
            now = monotonic()
            if len(self.siblings.known) > n_known:
                fresh, n_known = now, len(self.siblings.known)
            told = self._loss(now - fresh > NEW_S)
            if not told and now > until:
                told = f"MPI must start within {START_S:g} s, and did not: a rank on another node may have died"
            if not told and self._is_over(LOOK_S if not self._follow() else until - now):
                return
        if not self._is_over(GRACE_S, ranks=False):
            self._end(told)

    def _loss(self, is_settled: bool) -> str:
        """Return who has died, "" where nobody has."""
        lost = sorted(self.siblings.lost)
        if lost:
            which = f"rank {lost[0]} has" if len(lost) == 1 else f"ranks {', '.join(map(str, lost))} have"
        elif is_settled and self.siblings.n_missing:
            which = "a rank has" if self.siblings.n_missing == 1 else f"{self.siblings.n_missing} ranks have"
        else:
            return ""
        return f"{which} died on {os.uname().nodename} while MPI started, before anything was trained"

    def _follow(self) -> bool:
        """Have the kernel tell of the end of every rank of this node; return whether it will."""
        for rank, pid in self.siblings.known.items():
            if rank not in self.fds:
                try:
                    self.fds[rank] = os.pidfd_open(pid)
                except (OSError, AttributeError):  # no such call, no more descriptors; or it has just ended
                    return False
                self.poll.register(self.fds[rank], select.POLLIN)
        return bool(self.siblings.known) and not self.siblings.n_missing

    def _is_over(self, seconds: float, ranks: bool = True) -> bool:
        """Wait; return whether MPI has started. The end of a rank ends the wait, too."""
        if not ranks:
            self.poll = select.poll()
            self.poll.register(self.until, select.POLLIN)
        return any(fd == self.until for fd, _ in self.poll.poll(max(0, round(seconds * 1e3))))

    def _end(self, told: str) -> None:
        if tells():
            print(f"psframe: {told}; start again", file=sys.stderr, flush=True)
            self.end_job(END_S)
        sleep(LEAVE_S)
        os._exit(1)  # of a rank that ends by a signal the launcher would make status 0


def start(mpi: Any, end_job: Callable[[float], None]) -> None:
    """Start MPI, while the ranks of this node are watched. All ranks must call.

    Parameters
    ----------
    mpi : module
        ``mpi4py.MPI``.
    end_job : callable
        Ends the launcher that is above this process, after so many seconds.

    Raises
    ------
    RuntimeError
        Where MPI does not start.
    """
    try:
        begin = ctypes.CDLL(mpi.__file__).MPI_Init_thread  # mpi4py's own would let no other thread run meanwhile
    except (OSError, AttributeError):  # an MPI that is hidden inside mpi4py
        mpi.Init_thread()
        return
    with Watch(Siblings(), end_job):
        failed = begin(None, None, mpi.THREAD_MULTIPLE, ctypes.byref(ctypes.c_int()))
    if failed:
        raise RuntimeError(f"MPI_Init_thread ended with error {failed}")
    for comm in (mpi.COMM_SELF, mpi.COMM_WORLD):
        comm.Set_errhandler(mpi.ERRORS_RETURN)  # as mpi4py does after its own
