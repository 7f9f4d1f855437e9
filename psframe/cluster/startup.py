"""The launcher above this process: how long ago it was started, whether it is there, what it outlives; and its end.

And what has to be known before MPI starts.
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
from psframe.cluster.mpi_start import LAUNCHERS, launcher_of, process
from psframe.cluster.mpirun import LAUNCHED, speaks
from psframe.errors import limits, sentence

#: Open MPI leaves without a node that does not answer when it is asked three times; it kills its ranks at the first
ASK = "sleep {1}; for i in 1 2 3 4; do kill -TERM {0} || exit 0; sleep 0.5; done; sleep 3; kill -KILL {0}"

SHM = "/dev/shm"
SHM_BYTES = 1_060_000  # of it that MPICH takes for each rank of a node when it starts, and dies without

#: how many processes a launcher has started, as MPICH's, Open MPI's and Slurm's tell each of them
SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS")
RANKS = (*LAUNCHED, "SLURM_PROCID")  #: and which of them it is
SIZES_HERE = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")  #: and how many on this node

_LAUNCHER = os.getppid() if any(name in os.environ for name in LAUNCHED) else None


def since_launch_s(proc: Path = Path("/proc")) -> float | None:
    """Return the seconds since this process started, or the launcher above it; None where /proc does not tell.

    A launcher on another machine is not seen: there it is what this machine saw first.
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
    """Whether the launcher that started this process, if one did, is gone: some leave their ranks behind."""
    return _LAUNCHER is not None and os.getppid() != _LAUNCHER


def tolerant() -> bool:
    """Whether the MPI of this process outlives a rank: Open MPI does, if its mpirun was given ``--with-ft ulfm``."""
    return os.environ.get("OMPI_MCA_mpi_ft_enable") == "1"  # noqa: SIM112 - so Open MPI spells it


def end_launcher(after_s: float = 0.0) -> None:
    """End the launcher, which waits for a node that is lost, and with it this process; where it still is there then."""
    pid = launcher_of(Path("/proc"), os.getpid())
    if pid:
        quiet: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        with suppress(OSError):
            subprocess.Popen(["sh", "-c", ASK.format(pid, after_s)], start_new_session=True, **quiet)


def judge_shared_memory() -> None:
    """End the job, before MPI starts, where its ranks on this node have too little memory to share for MPICH.

    Its launcher says how many they are; the first of them tells, and lets it abort all.
    """
    n_here, fd = int(os.environ.get("MPI_LOCALNRANKS", 0)), os.environ.get("PMI_FD")
    if not n_here or fd is None:
        return
    told = without_shared_memory(SHM, n_here)
    if told and os.environ.get("MPI_LOCALRANKID") != "0":
        sleep(2)  # and if they were not aborted by then, the first has seen more
    elif told:
        print(f"psframe: {told}", file=sys.stderr, flush=True)
        _abort()


def without_shared_memory(path: str, n_here: int) -> str:
    """Return what to say where ``n_here`` ranks of MPICH cannot share memory by files in ``path``; "" where they can.

    A rank that is alone takes some there, too.
    """
    here = os.uname().nodename
    try:
        found = os.statvfs(path)
        denied = "" if os.path.isdir(path) else "no folder"
        if not denied and not os.access(path, os.W_OK | os.X_OK):
            denied = "one that is mounted read-only" if found.f_flag & os.ST_RDONLY else "one that is not"
    except OSError as error:
        found, denied = None, (error.strerror or "none").lower()
    if denied or not found:
        return (
            f"{path} must be a folder that can be written, in which ranks share memory by MPI, got {denied} on {here}; "
            f"run `mount -t tmpfs -o mode=1777 tmpfs {path}` there, or mend what mounts it"
        )
    if not found.f_blocks or (n_bytes := found.f_bavail * found.f_frsize) >= n_here * SHM_BYTES:  # none: no limit
        return ""
    return (
        f"{path} must have {n_here * SHM_BYTES:,} bytes for what {n_here} ranks say to each other by MPI, "
        f"got {n_bytes:,} on {here}; mount it larger, clear it, or start fewer ranks"
    )


def judge_limits() -> None:
    """End the job, before MPI starts, where a limit of this process is too low; and tell of one met later.

    What the first rank of a node has, others there may have too, which leave the word to it.
    """
    sys.excepthook = _told
    n_here = next((int(n) for name in SIZES_HERE if (n := os.environ.get(name, "")).isdecimal()), 1)
    told = limits.judge(n_here)
    if told:
        if not speaks():
            sleep(2)  # and if it was not aborted by then, the first has none such
        print(f"psframe: {told}", file=sys.stderr, flush=True)
        _abort()
        sys.exit(2)


def _told(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Tell of an error that no command has caught: one met while modules are imported, say."""
    said = sentence(error)
    if not said:
        sys.__excepthook__(kind, error, trace)
    else:
        print(f"psframe: {said}", file=sys.stderr, flush=True)
    sleep(0.5)  # a launcher that is told to abort drops what it has not read by then
    loaded = sys.modules.get("mpi4py.MPI")
    if loaded is not None and loaded.Is_initialized() and not loaded.Is_finalized():
        loaded.COMM_WORLD.Abort(2 if said else 1)  # the others wait for this rank
    os._exit(2 if said else 1)


def begin_mpi() -> None:
    """Start MPI, for commands over ranks, or end this process with status 2 where the launcher is another MPI's.

    ImportError or RuntimeError where there is no MPI.
    """
    if "mpi4py.MPI" in sys.modules:
        return
    judge_shared_memory()
    judge_limits()
    import mpi4py

    mpi4py.rc.initialize, mpi4py.rc.finalize = False, True  # below, and at exit
    warnings.filterwarnings("ignore", "suspicious MPI", RuntimeWarning)  # every rank would say so, and go on
    from mpi4py import MPI

    library = MPI.Get_library_version()
    told = foreign_launcher(0, library)
    if not told and library.startswith("MPICH") and "MPI_LOCALNRANKS" not in os.environ:
        told = without_shared_memory(SHM, 1)
    if not told:
        if tolerant():
            mpi_start.start(MPI, end_launcher)
        else:
            MPI.Init_thread()
        told = foreign_launcher(MPI.COMM_WORLD.size, library)
    if told:
        if next((os.environ[name] for name in RANKS if name in os.environ), "0") == "0":
            print(f"psframe: {told}", file=sys.stderr, flush=True)
        else:
            sleep(2)  # a launcher ends the others when the first of them has ended, and it is to tell before
        sys.exit(2)


def foreign_launcher(n_ranks: int, library: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return what to say where the launcher is not of the MPI that mpi4py uses; "" where it is, or nobody can tell.

    Parameters
    ----------
    n_ranks : int
        Of MPI's world; 0 before MPI starts, which some do not outlive.
    library : str
        What MPI calls itself, and how it was configured.
    """
    said = {name: environ.get(name, "") for name in SIZES}
    name, n_started = max(((name, int(n) if n.isdecimal() else 0) for name, n in said.items()), key=itemgetter(1))
    if n_ranks:
        is_foreign = n_ranks == 1 and n_started > 1  # each is a job of its own
    else:
        is_foreign = name == "OMPI_COMM_WORLD_SIZE" and library.startswith("MPICH") and "pmix" not in library.lower()
    if not is_foreign:
        return ""
    beside = Path(sys.executable).with_name("mpirun")
    do = f"start them with {beside}" if beside.exists() else "start them with the mpirun of that MPI"
    return (
        f"the launcher and mpi4py must be of one MPI, got {n_started} process(es) started ({name}) with an mpi4py over "
        f"{' '.join(library.split()[:4])}, which knows nothing of them; {do}, or install mpi4py for the launcher's MPI"
    )


def without_mpi(error: Exception) -> NoReturn:
    """Say that this machine has no MPI, or why it cannot be loaded, and end the job with status 2."""
    if speaks():
        told = sentence(error) or (
            f"an MPI must be installed, got none on {os.uname().nodename} ({str(error).splitlines()[0]}); "
            "pip install mpich, or load one"
        )
        print(f"psframe: {told}", file=sys.stderr, flush=True)
        _abort()
    sys.exit(2)


def _abort() -> None:
    """End the job, before MPI starts, with status 2; MPICH's launcher goes on without a rank that ends by itself.

    Its other ranks would wait in MPI's start for ever. Where the launcher is another one it returns: that sees to it.
    """
    fd = os.environ.get("PMI_FD")
    if fd is None or "MPI_LOCALNRANKS" not in os.environ:  # srun has the one alone
        return
    sleep(0.5)  # a launcher that is told to abort drops what it has not read by then
    signal.alarm(10)  # for one that does not know this
    with suppress(OSError):  # another rank was faster
        os.write(int(fd), b"cmd=abort exitcode=2\n")
    signal.pause()
