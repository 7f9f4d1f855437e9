"""The launcher above this process: how long ago it was started, whether it is there, what it outlives; and its end.

And what has to be known before MPI starts.
"""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import Any, NoReturn

from psframe.mpirun import LAUNCHED, speaks

#: the processes that a launcher puts above its ranks
LAUNCHERS = ("mpirun", "mpiexec", "hydra", "prterun", "prted", "orterun", "orted", "srun", "slurmstepd")

#: Open MPI leaves without a node that does not answer when it is asked three times; it kills its ranks at the first
ASK = "sleep {1}; for i in 1 2 3 4; do kill -TERM {0} || exit 0; sleep 0.5; done; sleep 3; kill -KILL {0}"

SHM = "/dev/shm"
SHM_BYTES = 1_060_000  # of it that MPICH takes for each rank of a node when it starts, and dies without

_LAUNCHER = os.getppid() if any(name in os.environ for name in LAUNCHED) else None


def since_launch_s(proc: Path = Path("/proc")) -> float | None:
    """Return the seconds since this process started, or the launcher above it; None where /proc does not tell.

    A launcher on another machine is not seen: there it is what this machine saw first.
    """
    try:
        _, parent, started = _process(proc, os.getpid())
        while parent > 1:
            name, above, earlier = _process(proc, parent)
            if not name.startswith(LAUNCHERS):
                break
            parent, started = above, earlier
        uptime = float((proc / "uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return uptime - started / os.sysconf("SC_CLK_TCK")


def _process(proc: Path, pid: int) -> tuple[str, int, int]:
    """Return a process's name, its parent, and when it started, in clock ticks since the machine did."""
    name, _, rest = (proc / str(pid) / "stat").read_text().partition("(")[2].rpartition(")")
    fields = rest.split()
    return name, int(fields[1]), int(fields[19])


def launcher_ended() -> bool:
    """Whether the launcher that started this process, if one did, is gone: some leave their ranks behind."""
    return _LAUNCHER is not None and os.getppid() != _LAUNCHER


def tolerant() -> bool:
    """Whether the MPI of this process outlives a rank: Open MPI does, if its mpirun was given ``--with-ft ulfm``."""
    return os.environ.get("OMPI_MCA_mpi_ft_enable") == "1"  # noqa: SIM112 - so Open MPI spells it


def end_launcher(after_s: float = 0.0) -> None:
    """End the launcher, which waits for a node that is lost, and with it this process; where it still is there then."""
    with suppress(OSError):
        pid = os.getppid()
        while pid > 1:
            name, above, _ = _process(Path("/proc"), pid)
            if name.startswith(LAUNCHERS):
                quiet: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
                subprocess.Popen(["sh", "-c", ASK.format(pid, after_s)], start_new_session=True, **quiet)
                return
            pid = above


def judge_shared_memory(path: str = SHM) -> None:
    """End the job, before MPI starts, where its ranks on this node have too little memory to share for MPICH.

    Its launcher says how many they are; the first of them tells, and lets it abort all.
    """
    n_here, fd = int(os.environ.get("MPI_LOCALNRANKS", 0)), os.environ.get("PMI_FD")
    if n_here < 2 or fd is None or "mpi4py.MPI" in sys.modules:
        return
    try:
        found = os.statvfs(path)
    except OSError:
        return
    if not found.f_blocks or (n_bytes := found.f_bavail * found.f_frsize) >= n_here * SHM_BYTES:  # none: no limit
        return
    if os.environ.get("MPI_LOCALRANKID") != "0":
        sleep(2)  # and if they were not aborted by then, the first has seen more
        return
    print(
        f"psframe: {path} must have {n_here * SHM_BYTES:,} bytes for what {n_here} ranks say to each other "
        f"by MPI, got {n_bytes:,} on {os.uname().nodename}; mount it larger, clear it, or start fewer ranks",
        file=sys.stderr,
        flush=True,
    )
    _abort()


def without_mpi(error: Exception) -> NoReturn:
    """Say that this machine has no MPI, and end the job with status 2."""
    if speaks():
        print(
            f"psframe: an MPI must be installed, got none on {os.uname().nodename} ({str(error).splitlines()[0]}); "
            "pip install mpich, or load one",
            file=sys.stderr,
            flush=True,
        )
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
