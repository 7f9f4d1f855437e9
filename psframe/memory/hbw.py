"""Placement ``hbw`` (:class:`HBW`): high-bandwidth memory from memkind (Woo et al. 2020), or from mmap and mbind."""

import os
from typing import Any, Literal

from psframe import compiled
from psframe.memory import pages
from psframe.memory.pages import HugePages, Policy
from psframe.memory.placement import BasePlacement, MissingMemoryError
from psframe.memory.process_site import Site


class HBW(BasePlacement):
    """Placement in MCDRAM or HBM.

    Parameters
    ----------
    policy : str
        ``bind``: on the high-bandwidth node nearest to the rank's cores (for SNC-4), or the allocation fails; shared
        memory on all high-bandwidth nodes. ``preferred``: on the nearest one while it has free pages. ``interleave``:
        page by page over all of them.
    """

    def __init__(self, *, policy: Literal["bind", "preferred", "interleave"] = "bind", huge_pages: HugePages = "none"):
        super().__init__(huge_pages=huge_pages)
        self.mode = policy

    def policy(self, site: Site, shared: bool) -> Policy:
        nodes = site.topology.hbw
        if not nodes:
            raise _missing(site)
        if self.mode == "preferred":
            nodes = (site.topology.nearest(site.home, nodes),)
        elif self.mode == "bind":
            nodes = site.by_distance(nodes) if shared else site.nearest(nodes)
        return Policy(self.mode, tuple(nodes), self.huge_pages)

    def allocate(self, n_bytes: int, site: Site) -> Any:
        policy = self.policy(site, False)
        # memkind: no huge pages with interleave, 1 GB pages deprecated, no madvise for transparent ones
        if policy.huge_pages == "none" or (policy.huge_pages == "2M" and policy.mode != "interleave"):
            why = open_memkind(site.topology.hbw)
            if not why:
                try:
                    return compiled.memkind.HbwBlock(n_bytes, policy.mode, policy.huge_pages == "2M")
                except OSError as error:
                    why = f"memkind gives none ({error.strerror})"
            site.note(f"{why}: hbw memory comes from mmap and mbind")
        return pages.private(n_bytes, policy, site.note)


def open_memkind(nodes: tuple[int, ...]) -> str:
    """Open memkind for the high-bandwidth ``nodes`` of this machine; return "", or why it cannot serve them."""
    wanted = ",".join(map(str, nodes))
    try:
        compiled.memkind.load()
    except OSError as error:
        return f"memkind is not installed ({error})"
    if not _told:  # it detects its nodes once per process: make them psframe's
        before = os.environ.get("MEMKIND_HBW_NODES")
        os.environ["MEMKIND_HBW_NODES"] = wanted
        os.environ.setdefault("MEMKIND_ARENA_NUM_PER_KIND", "1")  # else one arena per core
        _told.append(wanted if compiled.memkind.available() else "none")
        if before is None:
            del os.environ["MEMKIND_HBW_NODES"]  # later readers would take it for the user's setting
        else:
            os.environ["MEMKIND_HBW_NODES"] = before
    return "" if _told == [wanted] else f"memkind serves node(s) {_told[0]} in this process"


_told: list[str] = []  # the nodes that memkind serves in this process


def _missing(site: Site) -> MissingMemoryError:
    topology = site.topology
    barred = [node.number for node in topology.nodes if node.tier == "hbw"]
    if barred:
        got = f"got only node(s) {', '.join(map(str, barred))}, which cpuset.mems keeps from this process"
        fix = "widen it"
    elif topology.memory_mode == "cache" and topology.platform:
        kind = "MCDRAM" if topology.platform == "knl" else "high-bandwidth memory"
        got = f"got a machine whose {kind} is a cache (memory mode cache)"
        fix = "boot it in flat mode"
    else:
        got = "got none of node(s) " + ", ".join(f"{n.number} ({n.tier})" for n in topology.nodes if n.tier)
        fix = "declare it with placement.hbw_nodes or MEMKIND_HBW_NODES"
    return MissingMemoryError(
        f"hbw must find high-bandwidth memory as NUMA nodes, {got}; {fix}, or give placement.fallback=ddr"
    )
