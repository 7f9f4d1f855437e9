"""Running jobs on this host (:func:`here`): found by their keepers, each of which holds the folder of its run open.

Nothing is left behind for it on a disk, and another user's jobs are out of reach.
"""

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from psframe.cluster.flight import KEEPER
from psframe.errors import UserError, reason
from psframe.record import flight


@dataclass(frozen=True)
class Present:
    """A node of a job that runs here.

    Attributes
    ----------
    pid : int
        Of its keeper.
    run : Path
        The folder of its run.
    memory : memoryview
        Rings of its ranks, one after the other, for reading.
    """

    pid: int
    run: Path
    memory: memoryview

    def read(self, n_events: int = 0) -> list[flight.Read]:
        """Return what the rings say now, by rank of the node."""
        size = flight.N_BYTES
        return [flight.read(self.memory[at : at + size], n_events) for at in range(0, len(self.memory), size)]


def here(run: Path | None) -> list[Present]:
    """Return the nodes of a run's job, as :func:`present` does. Raises UserError if there are none."""
    try:
        found = present(run)
    except OSError as error:
        raise UserError(f"a run must be a folder, got {str(run)!r} ({reason(error)}); check the path") from None
    if not found:
        whose = f"{str(run)!r}, of which none runs here" if run else "none"
        raise UserError(f"a job of yours must train on this host, got {whose}; start it, or log in to a host of it")
    return found


def present(run: Path | None, proc: Path = Path("/proc")) -> list[Present]:
    """Return the nodes of a run's job on this host, of this user; of all runs, the newest last, for None.

    Raises OSError if ``run`` is no folder.
    """
    wanted, found = os.stat(os.path.join(run, "")) if run else None, list[Present]()
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        with suppress(OSError, ValueError):  # another user's process, or one that has just ended
            is_own = entry.stat().st_uid == os.geteuid()
            if is_own and KEEPER.encode() in (entry / "cmdline").read_bytes():
                descriptors = [entry / "fd" / name for name in os.listdir(entry / "fd")]
                folder = next((Path(os.readlink(path)) for path in descriptors if path.is_dir()), None)
                is_wanted = folder and (wanted is None or os.path.samestat(folder.stat(), wanted))
                memory = _memory(descriptors) if is_wanted else None
                if folder and memory:
                    found.append(Present(int(entry.name), folder, memory))
    return sorted(found, key=lambda node: node.pid)


def _memory(descriptors: Sequence[Path]) -> memoryview | None:
    """Return the memory of the rings that a keeper has open; stacks of ranks are shorter files of that name."""
    for path in descriptors:
        with suppress(FileNotFoundError):  # it has closed that one meanwhile
            if os.readlink(path).startswith(("/memfd:psframe ", "/dev/shm/#")):
                with open(path, "rb") as file:
                    size = os.fstat(file.fileno()).st_size // flight.N_BYTES * flight.N_BYTES
                    if size:
                        return memoryview(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ))
    return None
