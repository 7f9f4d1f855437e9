"""Topology of a machine (:class:`Topology`): cores, NUMA nodes, distances, memory tiers, from Linux's files alone."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from psframe.memory import machine, tiers
from psframe.memory.nodes import NODES, Node, local_cpus, read_nodes
from psframe.memory.sysfs import LIMIT, Tree, spell

__all__ = ["Node", "Topology", "read"]

CPUS = "sys/devices/system/cpu"
LOCAL, UNKNOWN = 10, 256  # SLIT distances: of a node to itself; above the maximum


@dataclass(frozen=True)
class Topology:
    """Cores and NUMA nodes of a machine, at least one node.

    Attributes
    ----------
    nodes : tuple of Node
        The online nodes, ascending.
    cores : tuple of tuple of int
        The online hardware threads of each core, ascending; every online CPU is in one core.
    offline_cpus, offline_nodes : tuple of int
        CPUs and nodes that are present but not online.
    packages : int or None
    cpu : str
        Model name; ``""`` if unknown.
    platform : str or None
        ``"knl"`` (Knights Landing or Mill), ``"xeon-max"``, ``"a64fx"``, ``"mi300a"``.
    cluster_mode : str or None
        ``"quadrant"``, ``"SNC-2"`` or ``"SNC-4"``; None if unknown or meaningless.
    memory_mode : str or None
        ``"flat"``, ``"cache"``, ``"hybrid"``, ``"HBM-only"``; None without known high-bandwidth memory.
    notes : tuple of str
        Missing or malformed files, and the assumptions made instead.
    """

    nodes: tuple[Node, ...]
    cores: tuple[tuple[int, ...], ...]
    offline_cpus: tuple[int, ...]
    offline_nodes: tuple[int, ...]
    packages: int | None
    cpu: str
    platform: str | None
    cluster_mode: str | None
    memory_mode: str | None
    notes: tuple[str, ...]

    @property
    def cpus(self) -> tuple[int, ...]:
        """All online CPUs, ascending."""
        return tuple(sorted(cpu for core in self.cores for cpu in core))

    @property
    def title(self) -> str:
        """The kind of machine: its CPU, cores and memory."""
        gib = sum(node.total_bytes for node in self.nodes) / 2**30
        return f"{self.cpu or os.uname().machine}, {len(self.cores)} core(s), {gib:.0f} GiB"

    def n_cores_of(self, cpus: set[int] | frozenset[int]) -> int:
        """Return the number of cores with at least one of these CPUs; the number of CPUs if none is in a known core."""
        return sum(1 for core in self.cores if cpus.intersection(core)) or len(cpus)

    @property
    def hbw(self) -> tuple[int, ...]:
        """Numbers of the high-bandwidth memory nodes that this process may use."""
        return self.of_tier("hbw")

    @property
    def ddr(self) -> tuple[int, ...]:
        """Numbers of the ordinary memory nodes that this process may use."""
        return self.of_tier("ddr")

    def of_tier(self, tier: str) -> tuple[int, ...]:
        """Return the numbers of a tier's nodes that this process may use."""
        return tuple(node.number for node in self.nodes if node.tier == tier and node.allowed)

    @property
    def memory(self) -> tuple[int, ...]:
        """Numbers of the nodes with memory that this process may use."""
        return tuple(node.number for node in self.nodes if node.tier and node.allowed)

    def node(self, number: int) -> Node:
        """Return an online node; KeyError for another number."""
        for node in self.nodes:
            if node.number == number:
                return node
        raise KeyError(number)

    def node_of(self, cpu: int) -> int | None:
        """Return the number of the node with a CPU; None if no node lists it."""
        return next((node.number for node in self.nodes if cpu in node.cpus), None)

    def nearest(self, home: int, among: Iterable[int]) -> int:
        """Return the node of ``among`` (online ones, at least one) at the smallest distance from ``home``.

        Ties go to the highest bandwidth, then to a node with ``home`` as its best initiator, then to the lowest number.
        """

        def rank(number: int) -> tuple[int, int, bool, int]:
            node = self.node(number)
            distance = LOCAL if number == home else node.distances.get(home, UNKNOWN)
            distance = self.node(home).distances.get(number, distance)
            return distance, -(node.bandwidth_mbps or 0), home not in node.initiators, number

        return min(among, key=rank)

    def home(self, cpus: Iterable[int]) -> int:
        """Return the node with most of these CPUs, ties to the lowest; if none has any, the lowest with memory."""
        wanted = set(cpus)
        held = {node.number: len(wanted.intersection(node.cpus)) for node in self.nodes}
        if any(held.values()):
            return max(held, key=lambda number: (held[number], -number))
        with_memory = self.memory or tuple(node.number for node in self.nodes if node.tier)
        return with_memory[0] if with_memory else self.nodes[0].number


def read(
    root: str | Path = "/", hbw_nodes: Sequence[int] | None = None, environ: Mapping[str, str] | None = None
) -> Topology:
    """Read the topology of this machine, or of one with ``sys`` and ``proc`` captured below ``root``.

    Parameters
    ----------
    root : path
    hbw_nodes : sequence of int, optional
        The complete list of high-bandwidth memory nodes; it overrides MEMKIND_HBW_NODES.
    environ : mapping, optional
        Environment with MEMKIND_HBW_NODES; default: this process's for ``/``, an empty one for a captured machine.

    Raises
    ------
    UserError
        Declared nodes are not online or have no memory. Files never make it raise: a note names the replacement of
        missing or malformed ones.
    """
    if environ is None:
        environ = os.environ if Path(root) == Path("/") else {}
    tree = Tree(root)
    cpus = _online_cpus(tree)
    cores = _cores(tree, cpus)
    packages = _packages(tree, cores)
    shown = read_nodes(tree, cpus)
    cpu, platform = machine.recognise(tree)
    fast = tiers.declared(hbw_nodes, environ, shown.nodes)
    nodes = tiers.assign(tree, shown, platform, packages, fast)
    return Topology(
        nodes=nodes,
        cores=cores,
        offline_cpus=_offline_cpus(tree, cpus),
        offline_nodes=shown.offline,
        packages=packages,
        cpu=cpu,
        platform=platform,
        cluster_mode=machine.cluster_mode(tree, platform, shown.homes, packages),
        memory_mode=machine.memory_mode(tree, platform, nodes, shown.homes, packages),
        notes=tree.notes,
    )


def _online_cpus(tree: Tree) -> tuple[int, ...]:
    """Return the online CPUs, from the first file that names any."""
    listed = tree.numbers(f"{CPUS}/online")
    if listed:
        return listed
    # CPU 0 often has no file, as it cannot go offline
    folders = tuple(n for n in tree.numbered(CPUS, "cpu") if tree.integer(f"{CPUS}/cpu{n}/online") != 0)
    if folders:
        tree.note("No list names the CPUs online; those whose folders do not say offline are taken.")
        return folders
    local = {cpu for number in tree.numbered(NODES, "node") for cpu in local_cpus(tree, number) or ()}
    if local:
        tree.note("No file names the CPUs online; those that the nodes list are taken.")
        return tuple(sorted(local))
    info = re.findall(r"^processor\s*:?\s*([0-9]{1,5})\b", tree.text("proc/cpuinfo", 1 << 25) or "", re.M | re.A)
    cpus = tuple(sorted({int(cpu) for cpu in info if int(cpu) < LIMIT}))
    tree.note("No file names the CPUs online; " + ("those of proc/cpuinfo are taken." if cpus else "none are known."))
    return cpus


def _offline_cpus(tree: Tree, online: tuple[int, ...]) -> tuple[int, ...]:
    """Return the CPUs present but not online; the kernel's ``offline`` also counts ones that could be hot-added."""
    present = tree.numbers(f"{CPUS}/present") or tuple(tree.numbered(CPUS, "cpu"))
    return tuple(sorted(set(present or tree.numbers(f"{CPUS}/offline") or ()) - set(online)))


def _cores(tree: Tree, online: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    left, cores, alone = set(online), [], []
    for cpu in online:
        if cpu in left:
            core = tuple(thread for thread in _siblings(tree, cpu) if thread in left)
            if cpu not in core:
                core = (cpu,)
                alone.append(cpu)
            left.difference_update(core)
            cores.append(core)
    if alone:
        tree.note(f"No file shows the core of CPU(s) {spell(alone)}; each is taken for a core.")
    return tuple(cores)


def _siblings(tree: Tree, cpu: int) -> tuple[int, ...]:
    """Return the hardware threads of a CPU's core; () if unknown."""
    return _together(tree, cpu, "core_cpus", "thread_siblings")


def _packages(tree: Tree, cores: Iterable[tuple[int, ...]]) -> int | None:
    """Return the number of packages; None if unknown.

    Some kernels give packages no number, or the same to two of them (s390, POWER, Itanium), but list their CPUs.
    """
    members = {_together(tree, core[0], "package_cpus", "core_siblings") for core in cores}
    if members and () not in members:
        return len(members)
    ids = {tree.integer(f"{CPUS}/cpu{core[0]}/topology/physical_package_id") for core in cores}
    return len({number for number in ids if number is not None and number >= 0}) or None


def _together(tree: Tree, cpu: int, *names: str) -> tuple[int, ...]:
    """Return the CPUs in the first of these files of a CPU that names any, as a list or a mask; () if none does."""
    place = f"{CPUS}/cpu{cpu}/topology"
    lists = (tree.numbers(f"{place}/{name}_list") for name in names)
    masks = (tree.bits(f"{place}/{name}") for name in names)
    return next((cpus for cpus in (*lists, *masks) if cpus), ())
