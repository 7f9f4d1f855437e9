"""Which ranks run under one kernel, and so may share memory and cores, whatever containers they are in."""

from pathlib import Path

from mpi4py import MPI

from psframe.cluster import communicators

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # drawn when a kernel starts; the same in all its containers


def split(world: MPI.Comm) -> MPI.Comm:
    """Return the ranks under this rank's kernel, in their order, as a communicator. All ranks must call.

    MPI goes by addresses, by which each container may be a machine of its own. Where a rank cannot read the kernel's
    name, MPI is believed.
    """
    try:
        mine = BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        mine = ""
    every = world.allgather(mine)
    if not all(every):
        return communicators.keep(world.Split_type(MPI.COMM_TYPE_SHARED, key=world.rank))
    return communicators.keep(world.Split(every.index(mine), key=world.rank))
