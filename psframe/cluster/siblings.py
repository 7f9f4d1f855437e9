"""Ranks of a node and the launcher above them, as /proc shows them before MPI has started (:class:`Siblings`)."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

#: names of the processes that a launcher puts above its ranks, or their beginnings
LAUNCHERS = ("mpirun", "mpiexec", "hydra", "prterun", "prted", "orterun", "orted", "srun", "slurmstepd")


def process(proc: Path, pid: int) -> tuple[str, int, int]:
    """Return a process's name, its parent, and its start, in clock ticks since boot."""
    name, _, fields = stat(proc, pid)
    return name, int(fields[1]), int(fields[19])


def stat(proc: Path, pid: int) -> tuple[str, str, list[str]]:
    """Return a process's name, its state, and the fields of its ``stat`` from the state on."""
    name, _, rest = (proc / str(pid) / "stat").read_text(errors="replace").partition("(")[2].rpartition(")")
    fields = rest.split()
    return name, fields[0], fields


def launcher_of(proc: Path, pid: int) -> int:
    """Return the PID of the launcher above a process, 0 if none is visible: containers may have PID namespaces."""
    with suppress(OSError, ValueError, IndexError):
        while (pid := process(proc, pid)[1]) > 0:  # a container's first process may be one
            if process(proc, pid)[0].startswith(LAUNCHERS):
                return pid
    return 0


class Siblings:
    """Ranks of this node that /proc shows: the processes that their launcher has started, itself or by a script.

    Parameters
    ----------
    environ : mapping
        Environment of this rank, as its launcher set it.
    me : int
        PID of this process.

    Attributes
    ----------
    known : dict of int to int
        For each rank seen, the PID of the process that the launcher started for it.
    lost : set of int
        Ranks of ``known`` that have ended.
    n_missing : int
        Number of ranks never seen.
    """

    def __init__(self, proc: Path = Path("/proc"), environ: Mapping[str, str] = os.environ, me: int | None = None):
        self.variable = "OMPI_COMM_WORLD_RANK" if "OMPI_COMM_WORLD_RANK" in environ else "PMI_RANK"
        self.proc, self.rank = proc, int(environ.get(self.variable, 0))
        #: in the environment of each rank of the job; each job of MPICH has a launcher of its own
        self.job = f"PMIX_NAMESPACE={environ['PMIX_NAMESPACE']}".encode() if "PMIX_NAMESPACE" in environ else b""
        self.n, self.n_missing = int(environ.get("OMPI_COMM_WORLD_LOCAL_SIZE", 1)), 0
        self.known: dict[int, int] = {}
        self.lost: set[int] = set()
        self.launcher = launcher_of(proc, os.getpid() if me is None else me)

    def look(self) -> None:
        """Update the attributes from /proc."""
        if not self.launcher:
            return
        children = self._children()
        for pid in children.difference(self.known.values()):
            rank = self._rank_of(pid)
            if rank is not None:
                self.known[rank] = pid
        self.lost = {rank for rank, pid in self.known.items() if pid not in children}
        # a rank that does not see itself sees no others
        self.n_missing = self.n - len(self.known) if self.rank in self.known else 0

    def _children(self) -> set[int]:
        """Return the PIDs of the launcher's living children."""
        pids = set()
        for entry in os.listdir(self.proc):
            with suppress(OSError, ValueError, IndexError):  # no process, or it has just ended
                _, state, fields = stat(self.proc, int(entry))
                if int(fields[1]) == self.launcher and state not in "ZX":
                    pids.add(int(entry))
        return pids

    def _rank_of(self, pid: int) -> int | None:
        """Return a process's rank in this job; None if it has none, or not yet."""
        with suppress(OSError, ValueError):
            variables = (self.proc / str(pid) / "environ").read_bytes().split(b"\0")
            if not self.job or self.job in variables:
                name = f"{self.variable}=".encode()
                return next((int(word[len(name) :]) for word in variables if word.startswith(name)), None)
        return None

    def stopped(self) -> set[int]:
        """Return the ranks of ``known`` that a signal has stopped."""
        found = set()
        for rank, pid in self.known.items():
            with suppress(OSError, IndexError):
                if stat(self.proc, pid)[1] in "Tt":
                    found.add(rank)
        return found
