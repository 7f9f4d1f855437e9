"""Where the pages of each role are, as the kernel reports them, and how many of them are where they were asked for."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from psframe import compiled
from psframe.memory.pages import DENIED, Policy

Blocks = Iterable[tuple[str, np.ndarray]]


@dataclass
class Pages:
    """Pages of one role, on one rank or summed over several.

    Attributes
    ----------
    asked : tuple of int
        The nodes that were asked for; () where it does not matter.
    by_node : Counter
        Pages by NUMA node.
    untouched : int
        Pages that are not there yet, because nothing was written to them.
    denied : int
        Pages whose place the kernel does not tell this process.
    """

    asked: tuple[int, ...] = ()
    by_node: Counter[int] = field(default_factory=Counter)
    untouched: int = 0
    denied: int = 0

    @property
    def share(self) -> float | None:
        """The part of the pages known to be on a node asked for; None where none is there, or none was asked for."""
        there = self.by_node.total() + self.denied
        return sum(self.by_node[node] for node in self.asked) / there if there and self.asked else None

    def __add__(self, other: "Pages") -> "Pages":
        return Pages(
            tuple(sorted({*self.asked, *other.asked})),
            self.by_node + other.by_node,
            self.untouched + other.untouched,
            self.denied + other.denied,
        )

    def to_plain(self) -> dict[str, int]:
        """Return pages by node as text, and under ``untouched`` and ``denied`` those there are."""
        plain = {str(node): n for node, n in sorted(self.by_node.items())}
        return plain | {name: n for name in ("untouched", "denied") if (n := getattr(self, name))}


def count(blocks: Blocks, policies: Mapping[str, Policy]) -> dict[str, Pages]:
    """Count the pages of blocks of this process by role.

    Parameters
    ----------
    blocks : iterable of (str, ndarray)
        Role and memory, uint8 (n,).
    policies : mapping of str to Policy
        What was asked for, by role.
    """
    found: dict[str, Pages] = {}
    for role, memory in blocks:
        if len(memory):
            pages = _count(memory, policies[role].nodes)
            found[role] = found[role] + pages if role in found else pages
    return found


def _count(memory: np.ndarray, asked: tuple[int, ...]) -> Pages:
    try:
        by_node = Counter(compiled.numa.where(memory))
    except OSError as error:
        if error.errno not in DENIED:
            raise
        page, first = compiled.numa.PAGE_BYTES, memory.ctypes.data
        return Pages(asked, denied=-(-(first + len(memory)) // page) - first // page)
    untouched = by_node.pop(-1, 0)
    return Pages(asked, by_node, untouched)


def complaint(role: str, placement: str, pages: Pages, minimum: float) -> str | None:
    """Return what is wrong where less than ``minimum`` of a role is where it was asked for, or None."""
    if pages.share is None or pages.share >= minimum:
        return None
    where = ", ".join(map(str, pages.asked))
    if not pages.by_node:
        return (
            f"placement.{role}={placement} must be shown to lie on NUMA node(s) {where}, but move_pages is denied "
            "here; in a container, allow it with --cap-add SYS_NICE"
        )
    places = ", ".join(f"{n:,} on node {node}" for node, n in sorted(pages.by_node.items()))
    denied = f", {pages.denied:,} that the kernel does not tell of" if pages.denied else ""
    return (
        f"placement.{role}={placement} must have {minimum:.0%} of its pages on NUMA node(s) {where}, got "
        f"{pages.share:.1%} ({places}{denied}); see psframe.doctor, or lower placement.minimum"
    )
