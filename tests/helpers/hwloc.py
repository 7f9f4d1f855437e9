"""Machines as hwloc's ``lstopo`` reads them (:class:`Machine`), and what psframe reads otherwise."""

import os
import shutil
import subprocess
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from psframe.memory.sysfs import parse_mask, spell
from psframe.memory.topology import Topology

LSTOPO = shutil.which("lstopo-no-graphics") or shutil.which("lstopo")
WORDS = ("--of", "xml", "--disallowed", "--no-io")


@dataclass(frozen=True)
class Machine:
    """Number of packages, CPUs of each core, memory in bytes of each node and CPUs near it; all CPUs."""

    packages: int
    cores: set[tuple[int, ...]]
    nodes: dict[int, int]
    near: dict[int, tuple[int, ...]]
    cpus: set[int]


def read(root: Path) -> Machine:
    """Return a machine as hwloc reads its files below a root."""
    env = {**os.environ, "HWLOC_FSROOT": str(root), "HWLOC_THISSYSTEM": "0", "HWLOC_COMPONENTS": "linux,stop"}
    said = subprocess.run([str(LSTOPO), *WORDS], env=env, capture_output=True, text=True, timeout=60, check=True).stdout
    found = list(ElementTree.fromstring(said[said.index("<?xml") :]).iter("object"))

    def of(kind: str) -> list[ElementTree.Element]:
        return [one for one in found if one.get("type") == kind]

    def cpus(one: ElementTree.Element) -> tuple[int, ...]:
        words = [f"{int(word or '0', 16):x}" for word in str(one.get("cpuset")).split(",")]
        return parse_mask(",".join(words)) or ()

    nodes = {int(str(one.get("os_index"))): one for one in of("NUMANode")}
    return Machine(
        len(of("Package")),
        {cpus(one) for one in of("Core") or of("PU")},
        {number: int(one.get("local_memory", "0")) for number, one in nodes.items()},
        {number: cpus(one) for number, one in nodes.items()},
        {int(str(one.get("os_index"))) for one in of("PU")},
    )


def differences(topology: Topology, seen: Machine) -> Iterator[str]:
    """Yield what psframe reads otherwise, as words of a table.

    A node without CPUs is near those of its best initiators, where these are known.
    """
    if (topology.packages or 0) != seen.packages:
        yield f"{topology.packages} packages, not {seen.packages}"
    if set(topology.cpus) != seen.cpus:
        yield f"CPUs {spell(topology.cpus)}, not {spell(seen.cpus)}"
    if set(topology.cores) != seen.cores:
        yield f"{len(topology.cores)} cores, not {len(seen.cores)}"
    if {node.number for node in topology.nodes} != set(seen.nodes):
        yield f"nodes {spell(node.number for node in topology.nodes)}, not {spell(seen.nodes)}"
    for node in topology.nodes:
        initiators = (topology.node(number).cpus for number in node.initiators)
        near = node.cpus or tuple(sorted(cpu for cpus in initiators for cpu in cpus))
        if node.total_bytes != seen.nodes.get(node.number, node.total_bytes):
            yield f"{node.total_bytes} bytes on node {node.number}, not {seen.nodes[node.number]}"
        if node.total_bytes and near and near != seen.near.get(node.number, near):
            yield f"CPUs {spell(near)} near node {node.number}, not {spell(seen.near[node.number])}"
