"""Audit of page locations (:func:`count`): pages of roles and tensors by NUMA node, as the kernel reports them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from psframe import compiled
from psframe.memory.pages import DENIED, Policy
from psframe.memory.tensor_names import key_of

Blocks = Iterable[tuple[str, np.ndarray]]
ENTRY = np.dtype(np.uint64)  #: of a page in /proc/self/pagemap
CHUNK_BYTES = 256 << 20  # looked at together, so that the arrays of their pages stay small


@dataclass
class Pages:
    """Page counts of one role, or of a tensor, on one rank or summed over several.

    Attributes
    ----------
    asked : tuple of int
        The NUMA nodes requested; () for any.
    wanted : Counter
        Pages requested of each of them, of memory in a proportion; empty for others.
    by_node : Counter
        Pages by NUMA node.
    untouched : int
        Pages not allocated yet, because nothing was written to them.
    denied : int
        Pages whose location the kernel does not report to this process.
    """

    asked: tuple[int, ...] = ()
    by_node: Counter[int] = field(default_factory=Counter)
    untouched: int = 0
    denied: int = 0
    wanted: Counter[int] = field(default_factory=Counter)

    @property
    def share(self) -> float | None:
        """Fraction of the allocated pages known to be on a requested node; None without such pages or a request.

        Pages beyond those that are wanted of a node do not count.
        """
        n_pages = self.by_node.total() + self.denied
        if not n_pages or not self.asked:
            return None
        placed = self.by_node & self.wanted if self.wanted else self.by_node
        return sum(placed[node] for node in self.asked) / n_pages

    def __add__(self, other: "Pages") -> "Pages":
        return Pages(
            tuple(sorted({*self.asked, *other.asked})),
            self.by_node + other.by_node,
            self.untouched + other.untouched,
            self.denied + other.denied,
            self.wanted + other.wanted,
        )

    def to_plain(self) -> dict[str, int]:
        """Return page counts by node number as text, plus ``untouched`` and ``denied`` if not 0."""
        plain = {str(node): n for node, n in sorted(self.by_node.items())}
        return plain | {name: n for name in ("untouched", "denied") if (n := getattr(self, name))}


def count(blocks: Blocks, policies: Mapping[str, Policy]) -> dict[str, Pages]:
    """Count the pages of this process's blocks by place.

    Parameters
    ----------
    blocks : iterable of (str, ndarray)
        Place (a role, or a tensor of one) and memory, uint8 (n,).
    policies : mapping of str to Policy
        The requested policies, by place.
    """
    by_place: dict[str, Pages] = {}
    for place, memory in blocks:
        if len(memory):
            pages = _count(memory, policies[place])
            by_place[place] = by_place[place] + pages if place in by_place else pages
    return by_place


def located(memory: np.ndarray) -> Counter[int]:
    """Return the pages of memory by NUMA node, -1 for those not allocated.

    Pages that are missing, though this process has them, are read and looked for again. The kernel does not tell of a
    page on its way to another place or into a huge one, and Linux 6.1 to 6.4 not of those whose next use NUMA balancing
    waits for; a read ends both.
    """
    found = Counter[int](compiled.numa.where(memory))
    if not found[-1]:
        return found
    for begin in range(0, len(memory), CHUNK_BYTES):
        _read_pages(memory[begin : begin + CHUNK_BYTES])
    return min(found, Counter(compiled.numa.where(memory)), key=lambda pages: pages[-1])


def _read_pages(memory: np.ndarray) -> None:
    """Read a byte of each page that this process has, by /proc/self/pagemap.

    Bit 63 is set of a page in memory, bit 62 of one that is swapped out or on its way.
    """
    pages, size = _pages_of(memory), compiled.numa.PAGE_BYTES
    with suppress(OSError), open("/proc/self/pagemap", "rb") as entries:
        entries.seek(pages.start * ENTRY.itemsize)
        flags = np.frombuffer(entries.read(len(pages) * ENTRY.itemsize), ENTRY) >> 62
        starts = (pages.start + np.flatnonzero(flags)) * size - memory.ctypes.data
        memory[np.maximum(starts, 0)].max(initial=0)


def _pages_of(memory: np.ndarray) -> range:
    """Return the numbers of the pages that hold ``memory``."""
    size, first = compiled.numa.PAGE_BYTES, memory.ctypes.data
    return range(first // size, -(-(first + len(memory)) // size))


def _count(memory: np.ndarray, policy: Policy) -> Pages:
    asked = policy.nodes
    try:
        by_node = located(memory)
    except OSError as error:
        if error.errno not in DENIED:
            raise
        return Pages(asked, denied=len(_pages_of(memory)))
    untouched, n_pages = by_node.pop(-1, 0), by_node.total()
    return Pages(asked, by_node, untouched, wanted=_wanted(policy, n_pages, len(memory)))


def _wanted(policy: Policy, n_pages: int, n_bytes: int) -> Counter[int]:
    """Return the pages that a policy wants of each node of so many; a round over the nodes may be left unfinished."""
    unit, total = policy.unit_bytes(n_bytes) // compiled.numa.PAGE_BYTES, sum(policy.weights)
    of_nodes = zip(policy.nodes, policy.weights, strict=False)
    return Counter({node: -(-n_pages * weight // total) + unit * weight for node, weight in of_nodes})


def complaint(place: str, placement: str, pages: Pages, minimum: float) -> str | None:
    """Return an error message if less than ``minimum`` (a fraction) of a place is placed as requested, else None."""
    if pages.share is None or pages.share >= minimum:
        return None
    where = ", ".join(f"{node} ({pages.wanted[node]:,} pages)" if pages.wanted else f"{node}" for node in pages.asked)
    if not pages.by_node:
        return (
            f"{key_of(place)}={placement} must be shown to lie on NUMA node(s) {where}, but move_pages is denied "
            "here; in a container, allow it with --cap-add SYS_NICE"
        )
    places = ", ".join(f"{n:,} on node {node}" for node, n in sorted(pages.by_node.items()))
    denied = f", {pages.denied:,} that the kernel does not tell of" if pages.denied else ""
    return (
        f"{key_of(place)}={placement} must have {minimum:.0%} of its pages on NUMA node(s) {where}, got "
        f"{pages.share:.1%} ({places}{denied}); see psframe.doctor, or lower placement.minimum"
    )
