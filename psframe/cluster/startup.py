"""Start of MPI (:func:`begin_mpi`) after checks that must precede it, and the launcher above this process.

For the launcher: its age, its presence, its tolerance of lost ranks, and its end.
"""

import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Mapping
from contextlib import suppress
from operator import itemgetter
from pathlib import Path
from time import sleep
from typing import Any, NoReturn

from psframe.cluster import mpi_start
from psframe.cluster.mpirun import LAUNCHED, speaks
from psframe.cluster.output import OTHERS_S, until_read
from psframe.cluster.siblings import LAUNCHERS, launcher_of, process
from psframe.errors import limits, sentence

#: Open MPI leaves without a node that does not answer, once asked three times; at the first it kills its ranks
ASK = "sleep {1}; for i in 1 2 3 4; do kill -TERM {0} || exit 0; sleep 0.5; done; sleep 3; kill -KILL {0}"

SHM = "/dev/shm"
SHM_BYTES = 1_060_000  # bytes there that MPICH allocates per rank of a node at its start, and dies without

#: variables with the number of processes that a launcher (MPICH's, Open MPI's, Slurm's) has started
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
RANKS = (*LAUNCHED, "SLURM_PROCID")  #: and with this process's number
SIZES_HERE = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")  #: and with the number of processes on this node

_LAUNCHER = os.getppid() if any(name in os.environ for name in LAUNCHED) else None


def since_launch_s(proc: Path = Path("/proc")) -> float | None:
    """Return the seconds since this process started, or the launcher above it; None if /proc does not show it.

    A launcher on another machine is invisible; the first of its processes on this machine counts instead.
    """
    try:
        _, parent, started = process(proc, os.getpid())
        while parent > 1:
            name, above, earlier = process(proc, parent)
            if not name.startswith(LAUNCHERS):
                break
            parent, started = above, earlier
        uptime = float((proc / "uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return uptime - started / os.sysconf("SC_CLK_TCK")


def launcher_ended() -> bool:
    """Return True if the launcher that started this process, if any, has ended: some leave their ranks behind."""
    return _LAUNCHER is not None and os.getppid() != _LAUNCHER


def tolerant() -> bool:
    """Return True if this MPI survives the loss of a rank: Open MPI does, if mpirun was given ``--with-ft ulfm``."""
    return os.environ.get("OMPI_MCA_mpi_ft_enable") == "1"  # noqa: SIM112 - so Open MPI spells it


def end_launcher(after_s: float = 0.0) -> None:
    """End the launcher, which waits for a lost node, and with it this process, if it still runs after ``after_s``."""
    pid = launcher_of(Path("/proc"), os.getpid())
    if pid:
        quiet: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        with suppress(OSError):
            subprocess.Popen(["sh", "-c", ASK.format(pid, after_s)], start_new_session=True, **quiet)


def check_shared_memory() -> None:
    """End the job, before MPI starts, if its ranks on this node have too little shared memory for MPICH.

    Its launcher sets their number; the first of them reports, and lets the launcher abort all.
    """
    n_here, fd = int(os.environ.get("MPI_LOCALNRANKS", 0)), os.environ.get("PMI_FD")
    if not n_here or fd is None:
        return
    message = without_shared_memory(SHM, n_here)
    if message and os.environ.get("MPI_LOCALRANKID") != "0":
        sleep(OTHERS_S)  # if they are not aborted by then, the first has found more
    elif message:
        print(f"psframe: {message}", file=sys.stderr, flush=True)
        _abort()


def without_shared_memory(path: str, n_here: int) -> str:
    """Return a message if ``n_here`` ranks of MPICH cannot share memory by files in ``path``; "" if they can.

    A single rank allocates some there, too.
    """
    host = os.uname().nodename
    try:
        stats = os.statvfs(path)
        denied = "" if os.path.isdir(path) else "no folder"
        if not denied and not os.access(path, os.W_OK | os.X_OK):
            denied = "one that is mounted read-only" if stats.f_flag & os.ST_RDONLY else "one that is not"
    except OSError as error:
        stats, denied = None, (error.strerror or "none").lower()
    if denied or not stats:
        return (
            f"{path} must be a folder that can be written, in which ranks share memory by MPI, got {denied} on {host}; "
            f"run `mount -t tmpfs -o mode=1777 tmpfs {path}` there, or mend what mounts it"
        )
    if not stats.f_blocks or (n_bytes := stats.f_bavail * stats.f_frsize) >= n_here * SHM_BYTES:  # 0 blocks: no limit
        return ""
    return (
        f"{path} must have {n_here * SHM_BYTES:,} bytes for what {n_here} ranks say to each other by MPI, "
        f"got {n_bytes:,} on {host}; mount it larger, clear it, or start fewer ranks"
    )


def forget_shared_memory(maps: Path = Path("/proc/self/maps")) -> None:
    """Remove the name of MPICH's shared memory, which all ranks of the node have mapped once MPI has started.

    MPICH removes it in MPI_Finalize, so that ranks that are killed would leave their memory occupied.
    """
    with suppress(OSError):
        names = {line.split()[-1] for line in maps.read_text().splitlines() if f"{SHM}/mpich_shm_" in line}
        for name in names:
            os.unlink(name)  # another rank of the node may be faster


def check_limits() -> None:
    """End the job, before MPI starts, if a limit of this process is too low, and report one that is met later.

    Other ranks of a node may have the first one's problem, and leave the report to it.
    """
    sys.excepthook = _told
    n_here = next((int(n) for name in SIZES_HERE if (n := os.environ.get(name, "")).isdecimal()), 1)
    message = limits.check(n_here)
    if message:
        if not speaks():
            sleep(OTHERS_S)  # if it is not aborted by then, the first rank has no such problem
        print(f"psframe: {message}", file=sys.stderr, flush=True)
        _abort()
        sys.exit(2)


def _told(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Report an error that no command has caught, for example one during imports.

    One that all ranks raise together is reported once, and each ends by itself.
    """
    message = sentence(error)
    loaded = sys.modules.get("mpi4py.MPI")
    if getattr(error, "agreed", False) and loaded is not None:
        if loaded.COMM_WORLD.rank == 0:
            print(f"psframe: {message}", file=sys.stderr, flush=True)
        return
    if not message:
        sys.__excepthook__(kind, error, trace)
    else:
        print(f"psframe: {message}", file=sys.stderr, flush=True)
    until_read()
    if loaded is not None and loaded.Is_initialized() and not loaded.Is_finalized():
        loaded.COMM_WORLD.Abort(2 if message else 1)  # the others wait for this rank
    os._exit(2 if message else 1)


def begin_mpi() -> None:
    """Start MPI, for commands over ranks, or end this process with status 2 if the launcher is another MPI's.

    Raises ImportError or RuntimeError if MPI is missing.
    """
    if "mpi4py.MPI" in sys.modules:
        return
    check_shared_memory()
    check_limits()
    import mpi4py

    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True  # initialized below, finalized at exit
    warnings.filterwarnings("ignore", "suspicious MPI", RuntimeWarning)  # every rank would print it, and go on
    from mpi4py import MPI

    library = MPI.Get_library_version()
    message = foreign_launcher(0, library)
    if not message and library.startswith("MPICH") and "MPI_LOCALNRANKS" not in os.environ:
        message = without_shared_memory(SHM, 1)
    if not message:
        if tolerant():
            mpi_start.start(MPI, end_launcher)
        else:
            mpi_start.begin(MPI, _abort_job)
        forget_shared_memory()
        message = foreign_launcher(MPI.COMM_WORLD.size, library)
    if message:
        if next((os.environ[name] for name in RANKS if name in os.environ), "0") == "0":
            print(f"psframe: {message}", file=sys.stderr, flush=True)
        else:
            sleep(OTHERS_S)  # the launcher ends all once one has ended, and rank 0 must report before
        sys.exit(2)


def foreign_launcher(n_ranks: int, library: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return a message if the launcher is not of the MPI that mpi4py uses; "" if it is, or if that is unknown.

    Parameters
    ----------
    n_ranks : int
        Of MPI's world; 0 before MPI starts, which some processes do not survive.
    library : str
        Name and configuration of MPI, as it reports them.
    """
    sizes = {name: environ.get(name, "") for name in SIZES}
    name, n_started = max(((name, int(n) if n.isdecimal() else 0) for name, n in sizes.items()), key=itemgetter(1))
    if n_ranks:
        is_foreign = n_ranks == 1 and n_started > 1  # each process is a job of its own
    else:
        is_foreign = name == "OMPI_COMM_WORLD_SIZE" and library.startswith("MPICH") and "pmix" not in library.lower()
    if not is_foreign:
        return ""
    beside = Path(sys.executable).with_name("mpirun")
    fix = f"start them with {beside}" if beside.exists() else "start them with the mpirun of that MPI"
    return (
        f"the launcher and mpi4py must be of one MPI, got {n_started} process(es) started ({name}) with an mpi4py over "
        f"{' '.join(library.split()[:4])}, which knows nothing of them; {fix}, or install mpi4py for the launcher's MPI"
    )


def without_mpi(error: Exception) -> NoReturn:
    """Report that this machine has no MPI, or the reason that it cannot be loaded, and end the job with status 2."""
    if speaks():
        message = sentence(error) or (
            f"an MPI must be installed, got none on {os.uname().nodename} ({str(error).splitlines()[0]}); "
            "pip install mpich, or load one"
        )
        print(f"psframe: {message}", file=sys.stderr, flush=True)
        _abort()
    else:
        sleep(OTHERS_S)  # the launcher ends all once one has ended
    sys.exit(2)


def _abort_job() -> None:
    """End the job, before MPI has started, as far as this process can."""
    end_launcher(after_s=2)
    _abort()


def _abort() -> None:
    """End the job, before MPI starts, with status 2; MPICH's launcher goes on without a rank that ends by itself.

    Its other ranks would wait in MPI's start forever. With another launcher this returns: that one ends the job.
    """
    fd = os.environ.get("PMI_FD")
    if fd is None or "MPI_LOCALNRANKS" not in os.environ:  # srun sets PMI_FD alone
        return
    until_read()
    signal.alarm(10)  # for a launcher that ignores the command
    with suppress(OSError):  # another rank was faster
        os.write(int(fd), b"cmd=abort exitcode=2\n")
    signal.pause()
