"""Pages by a policy: mapped, told where to lie, not yet touched."""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from psframe import compiled
from psframe.errors import UserError

HugePages = Literal["none", "transparent", "2M", "1G"]

#: the pages that must have been reserved, in bytes; 0 where the kernel finds them itself
RESERVED_BYTES: dict[str, int] = {"none": 0, "transparent": 0, "2M": 2 << 20, "1G": 1 << 30}
TRANSPARENT_BYTES = 2 << 20
#: what a sandbox answers to a call that it denies
DENIED = (errno.EPERM, errno.EACCES, errno.ENOSYS)


@dataclass(frozen=True)
class Policy:
    """Where pages lie, as the kernel has it (set_mempolicy(2)).

    Attributes
    ----------
    mode : {'default', 'bind', 'preferred', 'interleave'}
        ``default``: where they are first touched.
    nodes : tuple of int
        The NUMA nodes asked for; () where it does not matter.
    huge_pages : {'none', 'transparent', '2M', '1G'}
    """

    mode: str = "default"
    nodes: tuple[int, ...] = ()
    huge_pages: HugePages = "none"

    @property
    def page_bytes(self) -> int:
        """Bytes by which memory is taken."""
        return RESERVED_BYTES[self.huge_pages] or compiled.numa.PAGE_BYTES


def private(n_bytes: int, policy: Policy, note: Callable[[str], None]) -> Any:
    """Return zeroed memory of this process, whole pages, to build arrays on, that is freed with the last of them.

    Raises
    ------
    OSError
        Where there is no address space, or too few huge pages have been reserved where they are asked for.
    UserError
        Where the kernel refuses a node.
    """
    align_bytes = TRANSPARENT_BYTES if policy.huge_pages == "transparent" and n_bytes >= TRANSPARENT_BYTES else 0
    size = -(-max(n_bytes, 1) // policy.page_bytes) * policy.page_bytes
    block = compiled.numa.Block(size, RESERVED_BYTES[policy.huge_pages], align_bytes)
    memory = np.frombuffer(block, np.uint8)
    bind(memory, policy, note)
    if RESERVED_BYTES[policy.huge_pages]:
        populate(memory)  # a page that is missing later would end the process with SIGBUS
    return block


def populate(memory: np.ndarray) -> None:
    """Take the pages of a mapping, uint8 (n,), now; OSError where there are too few."""
    try:
        compiled.numa.madvise(memory, compiled.numa.POPULATE_WRITE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        memory[:] = 0  # a kernel before 5.14


def bind(memory: np.ndarray, policy: Policy, note: Callable[[str], None]) -> None:
    """Tell the kernel where the pages of a mapping, uint8 (n,), will lie; the mapping begins with a page.

    Where a sandbox denies that, ``note`` hears of it and the pages will lie where they are first touched.
    """
    if not len(memory):
        return
    if policy.mode != "default":
        try:
            compiled.numa.mbind(memory, policy.mode, policy.nodes)
        except OSError as error:
            if error.errno not in DENIED:
                raise UserError(
                    f"memory must be bound to NUMA nodes of this machine, got {list(policy.nodes)} "
                    f"({error.strerror}); python -m psframe.doctor lists them"
                ) from None
            note(
                f"mbind is denied here ({error.strerror}), so pages lie where they are first touched; in a container, "
                "allow it with --cap-add SYS_NICE"
            )
    if policy.huge_pages == "transparent":
        try:
            compiled.numa.madvise(memory, compiled.numa.HUGEPAGE)
        except OSError as error:
            note(f"this kernel has no transparent huge pages ({error.strerror})")


def no_huge_pages(policy: Policy, n_bytes: int) -> UserError:
    """Return the error of an allocation that found too few reserved huge pages."""
    size = RESERVED_BYTES[policy.huge_pages]
    return UserError(
        f"huge_pages: {policy.huge_pages} must find free pages of {size >> 10:,} kB, {-(-n_bytes // size):,} of them, "
        f"and does not; reserve them in /sys/kernel/mm/hugepages/hugepages-{size >> 10}kB/nr_hugepages, or take "
        "huge_pages: transparent"
    )
