"""Memory tiers of NUMA nodes (:func:`assign`): from the user's declaration, else bandwidths, else the CPU model."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from psframe.errors import UserError
from psframe.memory.machine import HBM_BYTES, TOLERANCE, is_all_hbm
from psframe.memory.nodes import Node, Shown
from psframe.memory.sysfs import Tree, parse_list, spell

VARIABLE = "MEMKIND_HBW_NODES"
#: least bandwidth ratio of HBM to ordinary memory; DDR differs by less between sockets
FAST = 1.5
TIERS = "sys/devices/virtual/memory_tiering"


def declared(hbw_nodes: Sequence[int] | None, environ: Mapping[str, str], nodes: Iterable[Node]) -> set[int] | None:
    """Return the nodes declared as high-bandwidth memory: ``hbw_nodes``, else MEMKIND_HBW_NODES; None without either.

    The variable is a list in libnuma's format, ``1,3-5``, or ``all``; an empty one counts as unset. UserError if it is
    malformed, or a number is no online node with memory.
    """
    usable = {node.number for node in nodes if node.total_bytes}
    if hbw_nodes is not None:
        name, text, numbers = "placement.hbw_nodes", str(list(hbw_nodes)), set(hbw_nodes)
    else:
        name, text = VARIABLE, environ.get(VARIABLE, "").strip()
        if not text:
            return None
        numbers = usable if text == "all" else set(parse_list(text) or [-1])
    if not numbers <= usable:
        raise UserError(
            f"{name} must list online NUMA nodes with memory, got {text}; remove it, or give nodes of "
            f"{spell(usable) or 'a machine that has some'}"
            + ("" if hbw_nodes is not None else ", such as 1,3-5, or all")
        )
    return numbers


def assign(
    tree: Tree, shown: Shown, platform: str | None, packages: int | None, fast: set[int] | None
) -> tuple[Node, ...]:
    """Return the nodes with their tiers; ``fast`` are the nodes declared as high-bandwidth memory, or None.

    Evidence, strongest first: the declaration; a machine without other memory; a bandwidth from CPUs of at least 1.5
    times that of its initiators' ordinary memory; the kernel's memory tiers; a CPU known to carry HBM. For nodes with
    CPUs only the first two count: the only memory of some CPUs is ordinary by definition.
    """
    nodes = tuple(node for node in shown.nodes if node.total_bytes)
    ordinary = _ordinary(tree, shown, nodes)
    apart = [node for node in nodes if node not in ordinary]
    if fast is None:
        all_hbm = is_all_hbm(platform, shown.nodes, shown.homes, packages)
        fast = {node.number for node in ordinary} if all_hbm else set()
        ratios = {node.number: _ratio(node, ordinary, shown.homes) for node in apart}
        fast |= {number for number, ratio in ratios.items() if ratio is not None and ratio >= FAST}
        unknown = [node for node in apart if ratios[node.number] is None]
        fast |= _by_kernel_tiers(tree, unknown, ordinary)
        unknown = [node for node in unknown if node.number not in fast]
        if platform in HBM_BYTES:
            max_bytes = HBM_BYTES[platform] * (1 + TOLERANCE) * (packages or 1)
            homes = [node for node in shown.nodes if node.number in shown.homes]
            fast |= _nearest_to_some(homes, [node for node in unknown if node.total_bytes <= max_bytes])
        unshown = [node.number for node in unknown if node.number not in fast]
        if unshown:
            tree.note(
                f"Nothing shows that the memory without CPUs of node(s) {spell(unshown)} is fast; "
                f"{VARIABLE} or placement.hbw_nodes declares it high-bandwidth memory."
            )
    tiers = {node.number: "ddr" if node in ordinary else "other" for node in nodes} | dict.fromkeys(fast, "hbw")
    return tuple(replace(node, tier=tiers.get(node.number)) for node in shown.nodes)


def _ordinary(tree: Tree, shown: Shown, nodes: tuple[Node, ...]) -> list[Node]:
    """Return the nodes of ordinary memory: those with CPUs and memory, or, without any, those nearest to CPUs."""
    with_cpus = [node for node in nodes if node.number in shown.homes]
    if with_cpus or not nodes:
        return with_cpus
    if not shown.homes:
        tree.note("No node lists CPUs; all memory is taken for ordinary memory.")
        return list(nodes)
    tree.note("No node has both CPUs and memory; the memory nearest to CPUs is taken for ordinary memory.")
    near = _nearest_to_some([node for node in shown.nodes if node.number in shown.homes], nodes)
    return [node for node in nodes if node.number in near]


def _nearest_to_some(homes: Iterable[Node], among: Sequence[Node]) -> set[int]:
    """Return the nodes of ``among`` nearest to any of ``homes``; all of them if a home knows no distance.

    This separates HBM from CXL memory, which has no CPUs either but is farther away.
    """
    numbers = set()
    for home in homes:
        distances = {node.number: home.distances.get(node.number, 0) for node in among}
        smallest = min(distances.values(), default=0)
        numbers |= {number for number, distance in distances.items() if distance == smallest or not smallest}
    return numbers


def _ratio(node: Node, ordinary: list[Node], homes: frozenset[int]) -> float | None:
    """Return the ratio of a node's bandwidth to that of ordinary memory, as CPUs see it; None if unknown."""
    own_bandwidth = _seen_by_cpus(node, homes)
    hung = [o for o in ordinary if o.number in node.initiators]
    if not hung:
        near = _nearest_to_some([node], ordinary)
        hung = [o for o in ordinary if o.number in near]
    # firmware may omit nodes: ordinary memory is of one kind, so any of it can replace the initiators' own
    for others in (hung, ordinary):
        bandwidths = [bandwidth for o in others if (bandwidth := _seen_by_cpus(o, homes)) is not None]
        if bandwidths:
            return None if own_bandwidth is None else own_bandwidth / max(bandwidths)
    return None


def _seen_by_cpus(node: Node, homes: frozenset[int]) -> int | None:
    return node.bandwidth_mbps if not node.initiators or homes & set(node.initiators) else None


def _by_kernel_tiers(tree: Tree, nodes: list[Node], ordinary: list[Node]) -> set[int]:
    """Return the nodes that the kernel ranks above all ordinary memory (lower tiers are faster)."""
    ranks: dict[int, int] = {}
    for tier in tree.numbered(TIERS, "memory_tier"):
        for number in tree.numbers(f"{TIERS}/memory_tier{tier}/nodelist") or ():
            ranks.setdefault(number, tier)
    known = [ranks[node.number] for node in ordinary if node.number in ranks]
    return {node.number for node in nodes if known and node.number in ranks and ranks[node.number] < min(known)}
