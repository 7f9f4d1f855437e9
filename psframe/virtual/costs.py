"""Virtual seconds of what ranks do (:class:`Costs`): from a machine's profile, as :mod:`psframe.predict` knows it.

A step's computation takes what was measured, on a core (:mod:`psframe.virtual.cores`). Bytes that a rank reads and
writes in an exchange take what its share of the node's memory bandwidth allows. Messages between nodes share the nodes'
links (:mod:`psframe.virtual.network`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import exp, log2
from random import Random

from psframe.predict.exchange import CROSSINGS, Node
from psframe.predict.machine import Link
from psframe.record.traffic import Traffic
from psframe.virtual.between import Between
from psframe.virtual.cores import Cores
from psframe.virtual.deaths import Deaths
from psframe.virtual.job import Free
from psframe.virtual.network import Network
from psframe.virtual.orders import Agendas, ByTime
from psframe.virtual.patterns import ByNode, Pattern, flows, inside_s
from psframe.virtual.scheduler import Rank, Scheduler


@dataclass(frozen=True)
class Premises:
    """Facts on which the times of a job rest.

    Attributes
    ----------
    node_of : sequence of int
        Node of each rank.
    compute_s : callable
        ``compute_s(samples, batch)``: seconds of a core for a step of so many samples of a full batch, while all cores
        of the node compute.
    deviation : float
        Standard deviation of the logarithm of a step's seconds.
    node : Node
    link : Link
    seed : int
        Of the random part of the steps, and of ties.
    dies_s : mapping of int to float
        When ranks die.
    """

    node_of: Sequence[int]
    compute_s: Callable[[int, int], float]
    deviation: float
    node: Node
    link: Link
    seed: int = 0
    dies_s: Mapping[int, float] = field(default_factory=dict)


class Costs(Free):
    """Costs of a job, charged to its ranks.

    Parameters
    ----------
    premises : Premises
    keeps : bool
        True: the messages between nodes are kept.

    Attributes
    ----------
    ranks : Scheduler
        Of the job.
    between : Between
    """

    def __init__(self, premises: Premises, keeps: bool = False):
        self.premises, self.node, self.latency_s = premises, premises.node, premises.link.latency_us.value * 1e-6
        self.between = Between(Network(premises.link.gbit.value * 1e9 / 8, self.latency_s), keeps)
        n = len(premises.node_of)
        n_cores = int(self.node.machine.cores.value)
        self.cores, self.is_crowded = Cores(n_cores, premises.seed), self.node.ranks > n_cores
        deaths = Deaths(premises.dies_s)
        order = ByTime(premises.seed, Agendas(self.between, self.cores, deaths))
        self.ranks = self.between.ranks = deaths.ranks = Scheduler(n, order)
        self.ranks.n_cores = n_cores
        self.ranks.latency_s, self.ranks.charge = self.node.machine.latency_us.value * 1e-6, self._charge
        self._random = [Random(f"{premises.seed} {rank}") for rank in range(n)]
        self._traffics: dict[int, list[Traffic]] = {}
        self._charged: dict[int, int] = {}
        self._byte_s: dict[int, float] = {}

    def meter(self, rank: int, traffics: list[Traffic], busy: int) -> None:
        """Charge a rank, from now on, for the bytes that these count, while ``busy`` of its node move theirs.

        Before, messages take no time: what a start sends depends on the lengths of paths.
        """
        self._traffics[rank], self._charged[rank] = traffics, _moved(traffics)
        self._byte_s[rank] = self.node.add_s(1.0, busy) / CROSSINGS

    def step_s(self, rank: int, n_samples: int, batch: int) -> float:
        """Return the seconds of a rank's next step, of so many samples of a full batch."""
        drawn = exp(self.premises.deviation * self._random[rank].gauss(0, 1))
        return self.premises.compute_s(n_samples, batch) * drawn

    def compute(self, seconds: float, first: bool = False) -> None:
        """Let the current rank compute for so many seconds of a core; with ``first``, before others that compute."""
        if not self.is_crowded:
            return self.ranks.sleep(seconds)
        self.ranks.point()  # others begin theirs that are earlier
        me = self.ranks.current
        node = self.premises.node_of[me.number]
        self.cores.begin(node, me.number, me.at_s, seconds, partial(self.ranks.go_on, me), first)
        return self.ranks.pause()

    def sends(self, source: int, target: int, n_bytes: int, then: Callable[[], None] | None = None) -> None:
        if not self._is_metered:
            return then() if then else None
        me = self.ranks.current
        me.at_s += self.node.call_s
        a, b = self.premises.node_of[source], self.premises.node_of[target]
        if a == b:
            me.at_s += self.node.copy_s(n_bytes, 1) + self.node.wait_s(source != target)
            return then() if then else None
        if then is None:
            return self.between.carry(a, b, n_bytes, (source, target))
        self.ranks.point()
        return self.between.begin([(a, b, n_bytes)], then, (source, target))

    def comes(self, pattern: Pattern, sizes: ByNode, here: int, brought: ByNode, then: Callable[[], None]) -> None:
        coming = flows(pattern, sizes, here, brought) if self._is_metered else []
        if coming:
            self.between.begin(coming, then)
        else:
            then()

    def collects(self, pattern: Pattern, sizes: ByNode, brought: ByNode) -> None:
        if not self._is_metered:
            return
        me = self.ranks.current
        latencies = log2(len(sizes)) if pattern is not Pattern.NOTHING else 0.0
        me.at_s += self.node.call_s + latencies * self.latency_s
        if sum(sizes.values()) > len(sizes):
            me.at_s += inside_s(pattern, self.node, sizes, self.premises.node_of[me.number], brought)

    @property
    def _is_metered(self) -> bool:
        return self.ranks.current.number in self._traffics

    def _charge(self, rank: Rank) -> float:
        """Return the seconds of what a rank has read and written since the last call."""
        traffics = self._traffics.get(rank.number)
        if traffics is None:
            return 0.0
        moved, before = _moved(traffics), self._charged[rank.number]
        self._charged[rank.number] = moved
        seconds = max(0, moved - before) * self._byte_s[rank.number]  # less: the counts were reset
        if not self.is_crowded or not seconds:
            return seconds
        self.compute(seconds, first=True)  # who has waited goes before those that compute
        return 0.0


def _moved(traffics: list[Traffic]) -> int:
    """Return the bytes that a rank itself has read and written; what messages cost is charged with them."""
    return sum(each.read - each.sent + each.written - each.received for each in traffics)
