"""Running jobs on this host (:func:`present`): found by their keepers, each of which holds the folder of its run open.

Nothing is left behind for it on a disk, and another user's jobs are out of reach.
"""

import mmap
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from psframe.record import flight

WORD = b"psframe.cluster.flight.keeper"  # of a keeper's command line


@dataclass(frozen=True)
class Present:
    """A node of a job that runs here.

    Attributes
    ----------
    pid : int
        Of its keeper.
    memory : memoryview
        Rings of its ranks, one after the other, for reading.
    """

    pid: int
    memory: memoryview

    def read(self, n_events: int = 0) -> list[flight.Read]:
        """Return what the rings say now, by rank of the node."""
        size = flight.N_BYTES
        return [flight.read(self.memory[at : at + size], n_events) for at in range(0, len(self.memory), size)]

    @property
    def ranks(self) -> list[int]:
        """PIDs of the ranks that have not ended."""
        headers = [read.header for read in self.read()]
        return [header["pid"] for header in headers if header["state"] in (flight.STARTS, flight.TRAINS)]


def present(run: Path, proc: Path = Path("/proc")) -> list[Present]:
    """Return the nodes of a run's job on this host, of this user. Raises OSError if ``run`` is no folder."""
    wanted, found = run.stat(), []
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError, ValueError):  # another user's process, or one that has just ended
            if WORD in (entry / "cmdline").read_bytes() and (memory := _memory(entry, wanted)):
                found.append(Present(int(entry.name), memory))
    return found


def _memory(entry: Path, wanted: os.stat_result) -> memoryview | None:
    """Return the memory of a keeper's rings, if it has the folder ``wanted`` open."""
    descriptors = [entry / "fd" / name for name in os.listdir(entry / "fd")]
    if not any(os.path.samestat(os.stat(path), wanted) for path in descriptors if _leads(path)):
        return None
    for path in descriptors:
        if os.readlink(path).startswith(("/memfd:psframe ", "/dev/shm/#")):
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size // flight.N_BYTES * flight.N_BYTES
                return memoryview(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ))
    return None


def _leads(path: Path) -> bool:
    """Return True if a descriptor is of a file or folder with a path."""
    return os.readlink(path).startswith("/")
