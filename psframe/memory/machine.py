"""Recognition of CPUs with high-bandwidth memory (:func:`recognise`), and of their cluster and memory modes."""

import re

from psframe.memory.nodes import Node
from psframe.memory.sysfs import Tree, spell

GIB = 1 << 30
#: bytes on a package: larger CPU-less memory is not HBM, and larger memory with CPUs is not HBM alone
HBM_BYTES = {"knl": 16 * GIB, "xeon-max": 64 * GIB}
#: relative tolerance of a node's total, which is smaller than the chips by the firmware's reserve
TOLERANCE = 0.06

_KNIGHTS = ("87", "133")  # Knights Landing and Knights Mill, of Intel's family 6
_CPUINFO_HEAD = 1 << 14  # bytes: the first CPU's entry; the kernel may be slow to write those of 271 more


def recognise(tree: Tree) -> tuple[str, str | None]:
    """Return the CPU's model name, ``""`` if unknown, and its platform (``Topology.platform``)."""
    info: dict[str, str] = {}
    for line in (tree.text("proc/cpuinfo", _CPUINFO_HEAD, head=True) or "").splitlines():
        key, colon, value = line.partition(":")
        if colon:
            info.setdefault(key.strip(), value.strip())
    intel = info.get("vendor_id", "GenuineIntel") == "GenuineIntel"
    if intel and info.get("cpu family") == "6" and info.get("model") in _KNIGHTS:
        return info.get("model name", ""), "knl"
    if info.get("CPU implementer", "").lower() == "0x46" and info.get("CPU part", "").lower() == "0x001":
        return info.get("model name", "A64FX"), "a64fx"
    cpu = info.get("model name") or info.get("cpu model") or info.get("cpu") or info.get("Processor") or ""
    cpu = cpu if cpu.isprintable() else ""
    if re.search(r"Xeon(\(R\))? CPU Max\b", cpu):
        return cpu, "xeon-max"
    return cpu, "mi300a" if "MI300A" in cpu else None


def is_all_hbm(platform: str | None, nodes: tuple[Node, ...], homes: frozenset[int], packages: int | None) -> bool:
    """Return True if high-bandwidth memory, at the nodes with CPUs (``homes``), is the machine's only memory."""
    if platform != "xeon-max":
        return platform in ("a64fx", "mi300a")
    apart = any(node.total_bytes and node.number not in homes for node in nodes)
    cached = any(node.side_cache_bytes for node in nodes)
    return not apart and not cached and sum(n.total_bytes for n in nodes) <= HBM_BYTES[platform] * (packages or 1)


def cluster_mode(tree: Tree, platform: str | None, homes: frozenset[int], packages: int | None) -> str | None:
    """Return the cluster mode, ``"quadrant"``, ``"SNC-2"`` or ``"SNC-4"``; None if it is unknown or has no meaning.

    ``"quadrant"`` stands for every mode with one node per package, also all-to-all and hemisphere.
    """
    if platform not in HBM_BYTES:
        return None
    if platform == "xeon-max" and packages is None:
        tree.note("The number of packages is unknown, and so is the cluster mode.")
        return None
    n_packages = 1 if platform == "knl" else packages or 1
    mode = (
        {1: "quadrant", 2: "SNC-2", 4: "SNC-4"}.get(len(homes) // n_packages) if not len(homes) % n_packages else None
    )
    if mode is None:
        tree.note(
            f"{len(homes)} nodes with CPUs on {n_packages} package(s) ({spell(homes)}) are no known cluster mode."
        )
    return mode


def memory_mode(
    tree: Tree, platform: str | None, nodes: tuple[Node, ...], homes: frozenset[int], packages: int | None
) -> str | None:
    """Return ``"flat"``, ``"cache"``, ``"hybrid"`` or ``"HBM-only"``; None without known high-bandwidth memory.

    ``nodes`` have their tiers. Evidence, strongest first: the kernel's memory-side caches; the mode that
    hwloc-dump-hwdata read from a Knights Landing's firmware and stored for all users; memory sizes.
    """
    fast = [node for node in nodes if node.tier == "hbw"]
    if any(node.side_cache_bytes for node in nodes):
        return "hybrid" if fast else "cache"
    if fast and all(node.tier in ("hbw", None) for node in nodes):
        return "HBM-only"
    hwloc_mode = _said(tree) if platform == "knl" else None
    if hwloc_mode is not None and (hwloc_mode != "cache") == bool(fast):
        return hwloc_mode
    if hwloc_mode is not None:
        tree.note(f"hwloc's file says memory mode {hwloc_mode}, which the nodes do not show; the nodes are believed.")
    if fast:
        # A half or a quarter of a Knights Landing's 16 GiB may be a cache. The size of the rest allows no other
        # conclusion; less than 4 GiB is an emulation.
        parts = (4 * GIB, 8 * GIB, 12 * GIB)
        n_bytes = sum(node.total_bytes for node in fast)
        partly = platform == "knl" and any(abs(n_bytes - part) <= TOLERANCE * part for part in parts)
        return "hybrid" if partly else "flat"
    if platform == "knl":
        tree.note("No node holds this Knights Landing's MCDRAM; it is taken for a cache.")
        return "cache"
    ordinary = sum(node.total_bytes for node in nodes if node.number in homes)
    if platform == "xeon-max" and ordinary > HBM_BYTES[platform] * (packages or 1):
        tree.note("No node holds this Xeon Max's HBM; it is taken for a cache.")
        return "cache"
    return None


def _said(tree: Tree) -> str | None:
    for folder in ("var/run", "run"):
        text = tree.text(f"{folder}/hwloc/knl_memoryside_cache") or ""
        row = re.search(r"^memory_mode:\s*(cache|flat|hybrid)(?:25|50)?\s*$", text, re.M | re.A | re.I)
        if row:
            return row[1].lower()
        if text:
            tree.note(f"{folder}/hwloc/knl_memoryside_cache names no memory mode; it is left out.")
    return None
