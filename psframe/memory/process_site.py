"""Location of a process (:class:`Site`): the machine's topology, and the CPUs that it may run on."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from psframe.memory.topology import Topology


@dataclass
class Site:
    """Topology and CPU affinity of a process, the input of placements.

    Attributes
    ----------
    cpus : tuple of int
        The CPUs that this process may run on.
    notes : list of str
        Deviations from the requested placement, each once.
    """

    topology: Topology
    cpus: tuple[int, ...]
    notes: list[str] = field(default_factory=list)

    @property
    def home(self) -> int:
        """The NUMA node with most of the CPUs."""
        return self.topology.home(self.cpus)

    @property
    def homes(self) -> tuple[int, ...]:
        """All NUMA nodes with any of the CPUs."""
        nodes = {self.topology.node_of(cpu) for cpu in self.cpus}
        return tuple(sorted(node for node in nodes if node is not None)) or (self.home,)

    def by_distance(self, nodes: Iterable[int]) -> tuple[int, ...]:
        """Return ``nodes``, the nearest first."""
        left, ordered = set(nodes), []
        while left:
            ordered.append(self.topology.nearest(self.home, left))
            left.remove(ordered[-1])
        return tuple(ordered)

    def nearest(self, nodes: Iterable[int]) -> tuple[int, ...]:
        """Return the nearest of ``nodes`` to each of ``homes``: a single one if this process is bound to one node."""
        candidates = tuple(nodes)
        return self.by_distance({self.topology.nearest(home, candidates) for home in self.homes})

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)
