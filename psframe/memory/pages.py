"""Memory mappings with a NUMA policy (:class:`Policy`): mapped and bound, mostly before the first touch."""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from psframe import compiled
from psframe.errors import UserError
from psframe.memory import weighted

HugePages = Literal["none", "transparent", "2M", "1G"]

#: size in bytes of pages that the administrator must have reserved; 0 if no reservation is needed
RESERVED_BYTES: dict[str, int] = {"none": 0, "transparent": 0, "2M": 2 << 20, "1G": 1 << 30}
TRANSPARENT_BYTES = 2 << 20
#: errors of a system call that a sandbox denies
DENIED = (errno.EPERM, errno.EACCES, errno.ENOSYS)


@dataclass(frozen=True)
class Policy:
    """NUMA policy of pages, in the kernel's terms (set_mempolicy(2)).

    Attributes
    ----------
    mode : {'default', 'bind', 'preferred', 'interleave', 'weighted'}
        ``default``: on the node of the first touch.
    nodes : tuple of int
        The NUMA nodes requested; () for any.
    weights : tuple of int
        Of ``weighted``: what each node has of the sum of them.
    huge_pages : {'none', 'transparent', '2M', '1G'}
    """

    mode: str = "default"
    nodes: tuple[int, ...] = ()
    huge_pages: HugePages = "none"
    weights: tuple[int, ...] = ()

    @property
    def page_bytes(self) -> int:
        """Page size in bytes: of reserved huge pages, else of ordinary ones."""
        return RESERVED_BYTES[self.huge_pages] or compiled.numa.PAGE_BYTES

    def unit_bytes(self, n_bytes: int) -> int:
        """Return the size of the pages that a mapping of ``n_bytes`` may get, transparent huge ones included."""
        is_huge = self.huge_pages == "transparent" and n_bytes >= TRANSPARENT_BYTES
        return TRANSPARENT_BYTES if is_huge else self.page_bytes


def private(n_bytes: int, policy: Policy, note: Callable[[str], None]) -> Any:
    """Return zeroed private memory with the buffer protocol, a multiple of a page, freed with the last array on it.

    Raises
    ------
    OSError
        No address space, or too few reserved huge pages if the policy wants them.
    UserError
        The kernel refuses a node.
    """
    unit_bytes = policy.unit_bytes(n_bytes)
    align_bytes = unit_bytes if policy.huge_pages == "transparent" else 0
    size = -(-max(n_bytes, 1) // policy.page_bytes) * policy.page_bytes
    block = compiled.numa.Block(size, RESERVED_BYTES[policy.huge_pages], align_bytes)
    memory = np.frombuffer(block, np.uint8)
    bind(memory, policy, note)
    if RESERVED_BYTES[policy.huge_pages]:
        populate(memory)  # a page that is missing later would end the process with SIGBUS
    return block


def populate(memory: np.ndarray) -> None:
    """Allocate all pages of a mapping, uint8 (n,), now; OSError if there are too few."""
    try:
        compiled.numa.madvise(memory, compiled.numa.POPULATE_WRITE)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        memory[:] = 0  # before Linux 5.14, which brought the advice


def bind(memory: np.ndarray, policy: Policy, note: Callable[[str], None]) -> None:
    """Set the policy of a page-aligned mapping, uint8 (n,), before its first touch.

    If a sandbox denies the call, ``note`` is called and the pages follow the first touch. UserError if the kernel
    refuses a node.
    """
    if not len(memory):
        return
    if policy.mode != "default":
        try:
            if policy.mode == "weighted":
                weighted.bind(memory, policy.nodes, policy.weights, policy.unit_bytes(len(memory)))
            else:
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
    """Return the error for an allocation with too few reserved huge pages."""
    size = RESERVED_BYTES[policy.huge_pages]
    return UserError(
        f"huge_pages: {policy.huge_pages} must find free pages of {size >> 10:,} kB, {-(-n_bytes // size):,} of them, "
        f"and does not; reserve them in /sys/kernel/mm/hugepages/hugepages-{size >> 10}kB/nr_hugepages, or take "
        "huge_pages: transparent"
    )
