"""Virtual seconds of what ranks do (:class:`Costs`): from a machine's profile, as :mod:`psframe.predict` knows it.

A step's computation takes what was measured, on the machine's cores. Bytes that a rank reads and writes in an exchange
take what its share of the node's memory bandwidth allows. A message between nodes has both nodes' link for as long as
its bytes take, behind those that came before.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import exp, log2
from random import Random

from psframe.predict.exchange import CROSSINGS, Node
from psframe.predict.machine import Link
from psframe.record.traffic import Traffic
from psframe.virtual.scheduler import Rank, Scheduler


@dataclass
class Costs:
    """Costs of a job.

    Attributes
    ----------
    ranks : Scheduler
    node_of : sequence of int
        Node of each rank.
    compute_s : callable
        ``compute_s(samples, batch)``: seconds of a step of so many samples of a full batch, while all ranks of the node
        compute.
    deviation : float
        Standard deviation of the logarithm of a step's seconds.
    node : Node
    link : Link
    seed : int
        Of the random part of the steps.
    """

    ranks: Scheduler
    node_of: Sequence[int]
    compute_s: Callable[[int, int], float]
    deviation: float
    node: Node
    link: Link
    seed: int = 0
    _traffics: dict[int, list[Traffic]] = field(default_factory=dict)
    _charged: dict[int, int] = field(default_factory=dict)
    _byte_s: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._random = [Random(f"{self.seed} {rank}") for rank in range(len(self.node_of))]
        self._free_s = [0.0] * (max(self.node_of) + 1)  # when each node's link has sent what it was given
        self._bytes_per_s = self.link.gbit.value * 1e9 / 8

    def meter(self, rank: int, traffics: list[Traffic], busy: int) -> None:
        """Charge the current rank, from now on, for the bytes that these count, while ``busy`` of its node move theirs.

        The first time, its time begins: what its start took depends on the lengths of paths.
        """
        if rank not in self._traffics:
            self.ranks.current.at_s = 0.0
            self._free_s = [0.0] * len(self._free_s)
        self._traffics[rank], self._charged[rank] = traffics, self._moved(traffics)
        self._byte_s[rank] = self.node.add_s(1.0, busy) / CROSSINGS

    def charge(self, rank: Rank) -> float:
        """Return the seconds of what a rank has read and written since the last call."""
        traffics = self._traffics.get(rank.number)
        if traffics is None:
            return 0.0
        moved, before = self._moved(traffics), self._charged[rank.number]
        self._charged[rank.number] = moved
        return max(0, moved - before) * self._byte_s[rank.number]  # less: the counts were reset

    def step_s(self, rank: int, n_samples: int, batch: int) -> float:
        """Return the seconds of a rank's next step, of so many samples of a full batch."""
        return self.compute_s(n_samples, batch) * exp(self.deviation * self._random[rank].gauss(0, 1))

    def sends(self, source: int, target: int, n_bytes: int) -> None:
        """Charge the current rank for a message, or an access to memory of another rank."""
        now = self.ranks.now_s + self.node.call_s
        a, b = self.node_of[source], self.node_of[target]
        if a == b:
            arrives = now + self.node.copy_s(n_bytes, 1) + self.node.wait_s(source != target)
        else:
            begins = max(now, self._free_s[a], self._free_s[b])
            arrives = self._free_s[a] = self._free_s[b] = begins + n_bytes / self._bytes_per_s
            arrives += self.link.latency_us.value * 1e-6
        self.ranks.current.at_s = arrives

    def collects(self, n_ranks: int, n_nodes: int, n_read: int, n_bytes: int) -> None:
        """Charge the current rank for its part in a collective."""
        self.ranks.current.at_s += self.node.call_s
        node = self.node
        inside = node.bcast_s(n_bytes) if n_read == 1 else node.allreduce_s(n_bytes) if n_read else 0.0
        self.ranks.current.at_s += inside if n_ranks > n_nodes else 0.0
        if n_nodes > 1 and n_read:
            over = 2 * (n_nodes - 1) / n_nodes if n_read > 1 else 1.0
            self.ranks.current.at_s += over * n_bytes / self._bytes_per_s
            self.ranks.current.at_s += log2(n_nodes) * self.link.latency_us.value * 1e-6

    @staticmethod
    def _moved(traffics: list[Traffic]) -> int:
        return sum(traffic.read + traffic.written for traffic in traffics)
