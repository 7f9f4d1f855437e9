"""Where a process stands: the machine's topology, and the CPUs that it runs on."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from psframe.memory.topology import Topology


@dataclass
class Site:
    """What placements decide by.

    Attributes
    ----------
    cpus : tuple of int
        What this process may run on.
    notes : list of str
        What was done otherwise than asked, each said once.
    """

    topology: Topology
    cpus: tuple[int, ...]
    notes: list[str] = field(default_factory=list)

    @property
    def home(self) -> int:
        """The NUMA node that most of the CPUs belong to."""
        return self.topology.home(self.cpus)

    @property
    def homes(self) -> tuple[int, ...]:
        """All NUMA nodes that the CPUs belong to."""
        found = {self.topology.node_of(cpu) for cpu in self.cpus}
        return tuple(sorted(node for node in found if node is not None)) or (self.home,)

    def by_distance(self, nodes: Iterable[int]) -> tuple[int, ...]:
        """Return ``nodes``, the nearest first."""
        left, ordered = set(nodes), []
        while left:
            ordered.append(self.topology.nearest(self.home, left))
            left.remove(ordered[-1])
        return tuple(ordered)

    def nearest(self, nodes: Iterable[int]) -> tuple[int, ...]:
        """Return the nearest of ``nodes`` to each node that this process may run on: one, if it is bound to one."""
        among = tuple(nodes)
        return self.by_distance({self.topology.nearest(home, among) for home in self.homes})

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
