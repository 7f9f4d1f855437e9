"""NUMA nodes from the kernel (:class:`Node`): CPUs, memory, distances, bandwidths, huge pages; tiers come later."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from psframe.memory.sysfs import Tree, parse_list, spell

NODES = "sys/devices/system/node"
MAX_PARENTS = 64
BLOCK_BYTES = 128 << 20  # least memory that is added to a running machine


@dataclass(frozen=True)
class Node:
    """An online NUMA node.

    Attributes
    ----------
    number : int
    cpus : tuple of int
        Its online CPUs, ascending; none on a node of memory alone.
    tier : str or None
        ``"ddr"``: ordinary memory; ``"hbw"``: high-bandwidth memory; ``"other"``: memory without CPUs and without
        evidence that it is fast (CXL, a GPU's, persistent memory); None for a node without memory.
    total_bytes, free_bytes : int
        Its memory; the part that can be allocated now.
    distances : dict
        SLIT distance (10 is local) to each online node; empty if unknown.
    bandwidth_mbps, latency_ns : int or None
        Of reads by its best initiators, in MB/s and ns, from the firmware's HMAT; None if unknown.
    initiators : tuple of int
        The nodes of these best initiators.
    side_cache_bytes : int
        Size of the memory-side cache of this node's memory; 0 without one.
    huge_pages : dict
        Page size in bytes -> (pages reserved, pages of these that are free).
    allowed : bool
        True if this process may allocate memory here (cpuset.mems).
    """

    number: int
    cpus: tuple[int, ...] = ()
    tier: str | None = None
    total_bytes: int = 0
    free_bytes: int = 0
    distances: dict[int, int] = field(default_factory=dict)
    bandwidth_mbps: int | None = None
    latency_ns: int | None = None
    initiators: tuple[int, ...] = ()
    side_cache_bytes: int = 0
    huge_pages: dict[int, tuple[int, int]] = field(default_factory=dict)
    allowed: bool = True


@dataclass(frozen=True)
class Shown:
    """The online nodes, still without tiers; those of them with CPUs, online or not (``homes``); the offline nodes."""

    nodes: tuple[Node, ...]
    homes: frozenset[int]
    offline: tuple[int, ...]


def local_cpus(tree: Tree, number: int) -> tuple[int, ...] | None:
    """Return the CPUs in a node's list, or else in its mask; None if neither can be read."""
    cpus = tree.numbers(f"{NODES}/node{number}/cpulist")
    return tree.bits(f"{NODES}/node{number}/cpumap") if cpus is None else cpus


def read_nodes(tree: Tree, online_cpus: tuple[int, ...]) -> Shown:
    """Return the nodes; if the kernel shows none, one node 0 with all CPUs and all memory. GPUs' nodes are left out."""
    folders = tree.numbered(NODES, "node")
    gpus = _gpu_nodes(tree, folders)
    folders = [number for number in folders if number not in gpus]
    if not folders:
        tree.note("The kernel shows no NUMA nodes; all CPUs and all memory are taken for one node 0.")
        total, free = _memory(tree, "proc/meminfo")
        pages = _huge_pages(tree, "sys/kernel/mm/hugepages")
        node = Node(0, online_cpus, total_bytes=total, free_bytes=free, huge_pages=pages)
        return Shown((node,), frozenset([0]), ())
    listed = tree.numbers(f"{NODES}/online") or tuple(folders)
    online = sorted(set(listed) & set(folders))
    if unseen := set(listed) - set(folders) - gpus:
        tree.note(f"Nodes {spell(unseen)} are online but have no folder; they are left out.")
    if not online:
        listed, online = tuple(folders), folders
    cpus, twice = _share_cpus(tree, online, len(folders) == 1, online_cpus)
    # a node keeps links to its offline CPUs: its memory then is still ordinary memory
    homes = frozenset(n for n in online if cpus[n] or n in twice or tree.numbered(f"{NODES}/node{n}", "cpu"))
    allowed = _allowed(tree)
    if allowed is not None and not allowed & set(online):
        tree.note(f"The nodes that this process may use ({spell(allowed)}) are none of those online; all are used.")
        allowed = None
    with_memory = set(tree.numbers(f"{NODES}/has_memory") or ()) - gpus
    alone, nodes = len(set(folders) | with_memory) == 1, []
    for number in online:
        node = _read_node(tree, number, homes, alone)
        distances = _distances(tree, number, listed, online)
        is_allowed = allowed is None or number in allowed
        nodes.append(replace(node, cpus=cpus[number], distances=distances, allowed=is_allowed))
    return Shown(tuple(nodes), homes, tuple(sorted((set(folders) | with_memory) - set(online))))


def _gpu_nodes(tree: Tree, folders: Iterable[int]) -> set[int]:
    """Return those of the nodes that NVIDIA's driver names as a GPU's memory, which it may take back."""
    place = "proc/driver/nvidia/gpus"
    said = (tree.text(f"{place}/{name}/numa_status") or "" for name in tree.names(place))
    found = {int(row[1]) for text in said if (row := re.search(r"^Node:\s+([0-9]{1,5})\s*$", text, re.M | re.A))}
    found &= set(folders)
    if found:
        tree.note(f"The memory of node(s) {spell(found)} is that of GPUs; they are left out.")
    return found


def _read_node(tree: Tree, number: int, homes: frozenset[int], alone: bool) -> Node:
    """Return a node from its folder, without CPUs and distances; an ``alone`` node has all the machine's memory."""
    place = f"{NODES}/node{number}"
    total, free = _memory(tree, f"{place}/meminfo")
    machine = _memory(tree, "proc/meminfo") if alone else (0, 0)
    if machine[0] - total >= (BLOCK_BYTES if total else 1):  # it may lack memory hot-added to a virtual machine
        if not total:
            tree.note("The only node says nothing of its memory; the whole machine's is taken.")
        total, free = machine
    elif not total and number in (tree.numbers(f"{NODES}/has_memory") or ()):
        tree.note(f"Node {number} has memory but does not say how much; it is taken for none.")
    pages = _huge_pages(tree, f"{place}/hugepages")
    if alone and not pages:
        pages = _huge_pages(tree, "sys/kernel/mm/hugepages")
    bandwidth, latency, initiators = _performance(tree, place, homes)
    caches = tree.numbered(f"{place}/memory_side_cache", "index")
    sizes = (tree.integer(f"{place}/memory_side_cache/index{i}/size") for i in caches)
    return Node(
        number,
        total_bytes=total,
        free_bytes=free,
        bandwidth_mbps=bandwidth,
        latency_ns=latency,
        initiators=initiators,
        side_cache_bytes=sum(max(0, size or 0) for size in sizes),
        huge_pages=pages,
    )


def _share_cpus(
    tree: Tree, online: list[int], alone: bool, online_cpus: tuple[int, ...]
) -> tuple[dict[int, tuple[int, ...]], list[int]]:
    """Return the online CPUs of each online node, each CPU once; and the nodes that list a CPU of an earlier one."""
    left, shared, twice = set(online_cpus), {}, []
    for number in online:
        cpus = local_cpus(tree, number)
        if cpus is None and alone:
            tree.note("The only node does not list its CPUs; all are taken for its.")
            cpus = online_cpus
        elif cpus is None:
            cpus = tuple(tree.numbered(f"{NODES}/node{number}", "cpu"))
            tree.note(
                f"Node {number} does not list its CPUs; those linked below it are taken: {spell(cpus) or 'none'}."
            )
        if set(cpus) & set(online_cpus) - left:
            twice.append(number)
        shared[number] = tuple(cpu for cpu in cpus if cpu in left)
        left -= set(cpus)
    if twice:
        tree.note(f"Node(s) {spell(twice)} list CPUs of nodes before them; each CPU is left with the first.")
    return shared, twice


def _memory(tree: Tree, place: str) -> tuple[int, int]:
    """Return the total of a meminfo file and the bytes that can be allocated now; 0 if it lacks them."""
    rows = re.findall(r"^(?:Node\s+\d+\s+)?([\w()]+):\s+([0-9]{1,15})\s*kB\s*$", tree.text(place) or "", re.M | re.A)
    info = {name: int(kib) * 1024 for name, kib in rows}
    total = info.get("MemTotal", 0)
    # As the kernel estimates MemAvailable of a machine: free pages, and the half of file pages and reclaimable slabs
    # that it can drop without reading them back soon. Its watermarks reserve about 2 %: below them it reclaims or
    # falls back to another node, and a bound allocation fails.
    spare = info.get("Active(file)", 0) + info.get("Inactive(file)", 0) + info.get("SReclaimable", 0)
    return total, max(0, min(total, info.get("MemFree", 0) + spare // 2 - total // 50))


def _distances(tree: Tree, number: int, listed: tuple[int, ...], online: list[int]) -> dict[int, int]:
    """Return the distances from a node to the online nodes; the kernel lists them in the order of the nodes."""
    place = f"{NODES}/node{number}/distance"
    text = tree.text(place)
    if text is None:
        return {}
    row = [int(d) for d in text.split() if re.fullmatch("[0-9]{1,3}", d) and 0 < int(d) <= 255]
    if len(row) == len(text.split()):
        for order in (listed, tree.numbers(f"{NODES}/possible") or ()):
            if len(order) == len(row) and set(online) <= set(order):
                return {n: d for n, d in zip(order, row, strict=True) if n in online}
    tree.note(f"Node {number} gives no distance for each node online; its distances are taken for unknown.")
    return {}


def _performance(tree: Tree, place: str, homes: Iterable[int]) -> tuple[int | None, int | None, tuple[int, ...]]:
    """Return the read bandwidth (MB/s), the read latency (ns) and the initiators that reach them.

    ``access0`` names the best initiators of any kind, including GPUs, ``access1`` the best ones with CPUs. A GPU's
    bandwidth says nothing about CPUs, so ``access1`` counts if ``access0`` names no node with CPUs.
    """
    candidates = []
    for access in ("access0", "access1"):
        folder = f"{place}/{access}/initiators"
        initiators = tuple(tree.numbered(folder, "node"))
        figures = (tree.integer(f"{folder}/{name}") for name in ("read_bandwidth", "read_latency"))
        bandwidth, latency = (figure if figure and figure > 0 else None for figure in figures)
        candidates.append((bandwidth, latency, initiators))
    return max(candidates, key=lambda f: (bool(set(f[2]) & set(homes)), f[0] is not None, bool(f[2])))


def _huge_pages(tree: Tree, place: str) -> dict[int, tuple[int, int]]:
    by_size = {}
    for name in tree.names(place):
        match = re.fullmatch("hugepages-([0-9]{1,12})kB", name)
        if match:
            counts = [max(0, tree.integer(f"{place}/{name}/{n}_hugepages") or 0) for n in ("nr", "free")]
            by_size[int(match[1]) * 1024] = (counts[0], min(counts))
    return dict(sorted(by_size.items()))


def _allowed(tree: Tree) -> set[int] | None:
    """Return the nodes on which this process may allocate memory; None if no file lists them."""
    row = re.search("^Mems_allowed_list:[ \t]*([^\n]*)$", tree.text("proc/self/status") or "", re.M)
    if row:
        nodes = parse_list(row[1])
        if nodes:
            return set(nodes)
        tree.note("proc/self/status gives no valid Mems_allowed_list; the cpuset is looked up instead.")
    for place in _cpusets(tree):
        nodes = tree.numbers(place)
        if nodes:
            return set(nodes)
    return None


def _cpusets(tree: Tree) -> Iterator[str]:
    """Yield the possible files of cpuset.mems: of this process's cgroup, its ancestors and the root, v2 before v1."""
    rows = [line.split(":", 2) for line in (tree.text("proc/self/cgroup") or "").splitlines()]
    paths = [row[2] for row in rows if len(row) == 3 and (not row[1] or "cpuset" in row[1].split(","))]
    for path in [*paths, (tree.text("proc/self/cpuset") or "").strip()]:
        parts = [part for part in path.split("/") if part]
        if ".." in parts or len(parts) > MAX_PARENTS:  # a cgroup outside the container's view
            continue
        for depth in range(len(parts), -1, -1):
            below = "/".join(["", *parts[:depth]])
            yield f"sys/fs/cgroup{below}/cpuset.mems.effective"
            for name in ("cpuset.effective_mems", "cpuset.mems"):
                yield f"sys/fs/cgroup/cpuset{below}/{name}"
            for name in ("cpuset.mems", "mems"):  # the mount point before cgroups existed
                yield f"dev/cpuset{below}/{name}"
