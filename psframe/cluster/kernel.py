"""Ranks under one kernel (:func:`split`): they may share memory and cores, even in different containers."""

from pathlib import Path

from mpi4py import MPI

from psframe.cluster import communicators

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")  # drawn at boot; the same in all containers of a kernel


def split(world: MPI.Comm) -> MPI.Comm:
    """Return a communicator of the ranks under this rank's kernel, in their order. All ranks must call.

    MPI goes by addresses, by which each container may be a separate machine. If any rank cannot read the kernel's boot
    ID, MPI's answer counts.
    """
    try:
        mine = BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        mine = ""
    every = world.allgather(mine)
    if not all(every):
        return communicators.keep(world.Split_type(MPI.COMM_TYPE_SHARED, key=world.rank))
    return communicators.keep(world.Split(every.index(mine), key=world.rank))
