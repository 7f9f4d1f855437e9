"""Placements of a buffer's pages: the protocol (:class:`Placement`), the built-in ones and their table.

==============  ====================================================================================================
name            location of the pages
==============  ====================================================================================================
``default``     on the node of the first touch
``ddr``         on ordinary memory, the nearest first
``hbw``         on high-bandwidth memory (MCDRAM, HBM2e): ``policy: bind`` the nearest to the rank's cores, or fail;
                ``preferred`` the nearest while it has free pages; ``interleave`` over all of it
``numa``        on the NUMA ``nodes`` given, the nearest first
``interleave``  page by page over the NUMA ``nodes`` given, all by default
``weighted``    over nodes, or tiers of memory, in the proportion of their ``weights``: ``{hbw: 3, ddr: 1}``
``auto``        of each tensor, in the tier where a step gains most by it: by a plan
``by_tensor``   of each tensor, as the first of the patterns ``tensors`` says that matches its name
==============  ====================================================================================================

Each but the last two accepts ``huge_pages: none | transparent | 2M | 1G``; ``auto`` accepts the first two.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from math import gcd, lcm
from typing import Any, Protocol

import numpy as np

from psframe.config.placement_spec import spelled_out
from psframe.config.registry import Choice, Count, PositiveInt, Table, bind
from psframe.errors import UserError
from psframe.memory import pages
from psframe.memory.pages import HugePages, Policy
from psframe.memory.process_site import Site

TABLE: Table = {
    "default": "psframe.memory.placement:Default",
    "ddr": "psframe.memory.placement:DDR",
    "hbw": "psframe.memory.hbw:HBW",
    "numa": "psframe.memory.placement:Numa",
    "interleave": "psframe.memory.placement:Interleave",
    "weighted": "psframe.memory.placement:Weighted",
    "by_tensor": "psframe.memory.by_tensor:ByTensor",
    "auto": "psframe.memory.auto:Auto",
}


#: placements that make sense for a role of a run alone
FOR_RUNS = ("by_tensor", "auto")


class MissingMemoryError(UserError):
    """The requested memory does not exist on this machine; ``placement.fallback`` may replace it."""


class Placement(Protocol):
    """Protocol of a placement, made as ``make(**yaml_keys)``; a :class:`BasePlacement` needs only ``policy``."""

    def policy(self, site: Site, shared: bool) -> Policy:
        """Return the kernel's policy for this process; MissingMemoryError if no such memory exists.

        ``shared``: for memory that all ranks of a node map.
        """

    def allocate(self, n_bytes: int, site: Site) -> Any:
        """Return private memory: an object with a writable, page-aligned buffer of at least ``n_bytes``.

        It is freed with the last array on it. OSError if no memory is left.
        """

    def bind(self, memory: np.ndarray, site: Site) -> None:
        """Set the policy of a shared mapping, uint8 (n,), before its first touch. One rank of the node calls."""


class BasePlacement:
    """Placement defined by its policy alone."""

    def __init__(self, *, huge_pages: HugePages = "none"):
        self.huge_pages = huge_pages

    def policy(self, site: Site, shared: bool) -> Policy:
        raise NotImplementedError

    def allocate(self, n_bytes: int, site: Site) -> Any:
        return pages.private(n_bytes, self.policy(site, False), site.note)

    def bind(self, memory: np.ndarray, site: Site) -> None:
        pages.bind(memory, self.policy(site, True), site.note)


class Default(BasePlacement):
    """First-touch placement."""

    def policy(self, site: Site, shared: bool) -> Policy:
        return Policy(huge_pages=self.huge_pages)


class DDR(BasePlacement):
    """Placement on ordinary memory, the nearest first."""

    def policy(self, site: Site, shared: bool) -> Policy:
        nodes = site.by_distance(site.topology.ddr)
        if not nodes:
            raise MissingMemoryError(
                "ddr must find ordinary memory, got a machine whose nodes are all high-bandwidth memory; give "
                "`default`, or placement.fallback=default"
            )
        # where there is nothing else, nothing need be asked of a kernel that may deny it
        mode = "default" if set(nodes) >= set(site.topology.memory) else "bind"
        return Policy(mode, nodes, self.huge_pages)


class Numa(BasePlacement):
    """Placement on NUMA nodes by number, the nearest first."""

    def __init__(self, *, nodes: Sequence[Count], huge_pages: HugePages = "none"):
        super().__init__(huge_pages=huge_pages)
        self.nodes = tuple(nodes)

    def policy(self, site: Site, shared: bool) -> Policy:
        return Policy("bind", site.by_distance(existing(self.nodes, site)), self.huge_pages)


class Interleave(BasePlacement):
    """Placement page by page over NUMA nodes by number, or over all with memory."""

    def __init__(self, *, nodes: Sequence[Count] | None = None, huge_pages: HugePages = "none"):
        super().__init__(huge_pages=huge_pages)
        self.nodes = None if nodes is None else tuple(nodes)

    def policy(self, site: Site, shared: bool) -> Policy:
        nodes = site.topology.memory if self.nodes is None else existing(self.nodes, site)
        return Policy("interleave", tuple(sorted(nodes)), self.huge_pages)


class Weighted(BasePlacement):
    """Placement over memory in a proportion, so that the bandwidths of all of it add up.

    Parameters
    ----------
    weights : mapping of int or str to int
        Weight of a NUMA node, by its number, or of a tier, ``ddr`` or ``hbw``: of its node nearest to the rank's cores;
        of shared memory, of all its nodes.
    """

    def __init__(self, *, weights: Mapping[str | Count, PositiveInt], huge_pages: HugePages = "none"):
        super().__init__(huge_pages=huge_pages)
        self.weights = {str(key): weight for key, weight in weights.items()}  # a config's keys are texts
        if wrong := [key for key in self.weights if not re.fullmatch("[0-9]{1,5}|ddr|hbw", key, re.ASCII)]:
            raise UserError(
                f"weights must be of NUMA nodes by number, or of ddr and hbw, got {wrong[0]!r}; give, say, "
                "{hbw: 3, ddr: 1}"
            )

    def policy(self, site: Site, shared: bool) -> Policy:
        parts: Counter[int] = Counter()
        shares = {key: (self._nodes(key, site, shared), weight) for key, weight in self.weights.items()}
        common = lcm(*(len(nodes) for nodes, _ in shares.values()))
        for nodes, weight in shares.values():
            parts.update(dict.fromkeys(nodes, weight * common // len(nodes)))
        nodes, weights = tuple(sorted(parts)), [parts[node] for node in sorted(parts)]
        return Policy("weighted", existing(nodes, site), self.huge_pages, tuple(w // gcd(*weights) for w in weights))

    @staticmethod
    def _nodes(key: str, site: Site, shared: bool) -> tuple[int, ...]:
        if key.isdecimal():
            return (int(key),)
        nodes = site.topology.hbw if key == "hbw" else site.topology.ddr
        if not nodes:
            raise MissingMemoryError(
                f"weights must be of memory that this machine has, got {key}, of which there is none; leave it out, or "
                "give placement.fallback=ddr"
            )
        return nodes if shared else site.nearest(nodes)


def bound(spec: Any, section: str = "placement") -> Choice:
    """Return the placement that a name or a mapping stands for where no other key is idle; UserError if one is."""
    spelled = spelled_out(spec)
    if isinstance(spelled, Mapping) and "name" not in spelled:
        raise UserError(
            f"{section} must be a placement, got {spec!r}; write a name, as hbw, one with keys, as "
            "{name: hbw, policy: preferred}, or a proportion, as {weighted: {hbw: 3, ddr: 1}}"
        )
    choice = bind(section, TABLE, spelled)
    if choice.unused:
        raise UserError(f"{section}: {choice.name} takes no {', '.join(choice.unused)}, got {spec!r}; remove it")
    return choice


def placement_of(choice: Choice) -> Placement:
    """Return the placement that a config chose; UserError if it is none."""
    try:
        placement = choice()
    except TypeError:  # it requires positional arguments, and placements get none
        placement = None
    except UserError as error:
        raise UserError(f"{choice.section}: {error}") from None
    if not all(hasattr(placement, name) for name in ("policy", "allocate", "bind")):
        raise UserError(
            f"{choice.section} must name a placement, got {choice.name!r}, which is none; "
            "see psframe.memory.placement.Placement"
        )
    return placement


def existing(nodes: Sequence[int], site: Site) -> tuple[int, ...]:
    """Return ``nodes`` if all of them have memory that this process may use, else MissingMemoryError."""
    usable = site.topology.memory
    missing = sorted(set(nodes) - set(usable))
    if missing or not nodes:
        raise MissingMemoryError(
            f"nodes must be NUMA nodes with memory that this process may use, got {list(nodes)}; valid: "
            f"{', '.join(map(str, usable))}"
        )
    return tuple(dict.fromkeys(nodes))
