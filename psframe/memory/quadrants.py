"""``python -m psframe.memory.quadrants N``: CPUs and NUMA nodes of each of N containers, one a line (:func:`divide`).

The lists have the cpuset format, ``0-15,64-79 0,4``. The output is empty if fewer than two nodes have CPUs.
"""

import os
import sys
from collections.abc import Iterable, Sequence

from psframe.memory.sysfs import spell
from psframe.memory.topology import UNKNOWN, Topology, read

Part = tuple[tuple[int, ...], tuple[int, ...]]


def divide(topology: Topology, n: int, cpus: Iterable[int]) -> list[Part]:
    """Return the CPUs and the memory nodes of ``n`` containers; [] if fewer than two nodes have CPUs.

    Each container gets the next node with CPUs, several if there are more nodes than containers, or one shared with its
    neighbor if there are fewer. Each node brings its memory and the nearest CPU-less memory nodes, all that are equally
    near: on a Knights Landing in SNC-4, a quadrant with its DDR and its MCDRAM.

    Parameters
    ----------
    cpus : iterable of int
        The usable CPUs.
    """
    usable = set(cpus)
    homes = [node.number for node in topology.nodes if usable.intersection(node.cpus)]
    if len(homes) < 2:
        return []
    parts = []
    for k in range(n):
        first = k * len(homes) // n
        own_homes = homes[first : max(first + 1, (k + 1) * len(homes) // n)]
        local = {cpu for home in own_homes for cpu in usable.intersection(topology.node(home).cpus)}
        parts.append(
            (tuple(sorted(local)), tuple(sorted({node for home in own_homes for node in _memory(topology, home)})))
        )
    return parts


def _memory(topology: Topology, home: int) -> set[int]:
    """Return the memory node nearest to ``home``, a node with CPUs, and all the nearest ones without CPUs."""
    distances = {node: topology.node(home).distances.get(node, UNKNOWN) for node in topology.memory}
    cpuless = [node for node in distances if not topology.node(node).cpus]
    nearest = {node for node in cpuless if distances[node] == min(distances[other] for other in cpuless)}
    return nearest | ({topology.nearest(home, distances)} if distances else set())


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status, 2 for invalid arguments."""
    if len(argv) != 1 or not argv[0].isdigit() or not int(argv[0]):
        print(
            f"psframe: it takes a number of containers, got {' '.join(argv) or 'none'}; give, say, 4", file=sys.stderr
        )
        return 2
    for cpus, nodes in divide(read("/", environ={}), int(argv[0]), os.sched_getaffinity(0)):
        print(spell(cpus), spell(nodes))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
