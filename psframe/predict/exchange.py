"""Seconds of an exchange and update, computed from a machine's figures (:class:`Node`, :func:`between_s`).

``P`` ranks of a node, ``W`` workers of the job, ``S`` bytes of parameters. A core copies payload at ``copy_gbps`` and
adds at ``sum_gbps``, and no faster than its share of the node's memory bandwidth allows; every copied or added byte
crosses memory three times. MPI has rates of its own. A message inside a node is copied twice, by sender and receiver.
Algorithms are those of MPI libraries for long messages (Thakur, Rabenseifner and Gropp 2005):

=========== ======================================================= =====================================
operation   copies and additions of a rank                          messages one after another
=========== ======================================================= =====================================
bcast       a binomial scatter and a ring: 3 S (P - 1) / P          log2 P + P - 1
reduce      reduce-scatter and gather: 3 S (P - 1) / P, and adds S  2 log2 P
allreduce   reduce-scatter and allgather: 4 S (P - 1) / P, adds S   2 log2 P
gather      the root: (P - 1) S                                     P - 1
alltoall    2 S (P - 1) / P                                         P - 1
allgather   2 S (P - 1) / P                                         P - 1
=========== ======================================================= =====================================

``shared`` copies nothing: its reducers read W S and the update's vectors, and synchronize three times. No exchange
takes less than the node's memory for the bytes that the collectives count (:mod:`psframe.predict.byte_counts`).
"""

from dataclasses import dataclass, replace
from math import ceil, log2

from psframe.predict.byte_counts import STATE, counted
from psframe.predict.job import Codec, ExchangePlan
from psframe.predict.machine import Link, Machine

#: collectives whose exchanges are modelled here
COLLECTIVES = ("shared", "hierarchical", "buffer", "object", "null")
CROSSINGS = 3  # of memory by a copied byte: the source is read, the target read and written
UPDATE_VECTORS = 5 / 3  # of an update with momentum, in additions: it moves five vectors over memory, an addition three
GATES = 3  # barriers of a node's ranks in a step
CALL_US = 15.0  # of Python, per collective call, on a core of scalar 1
PICKLES = 2  # extra copies of a pickled message: into the pickle, and out of it


@dataclass(frozen=True)
class Node:
    """Model of one node's ranks in an exchange.

    Attributes
    ----------
    machine : Machine
    ranks : int
        Ranks of the node.
    tier : str or None
        Tier of the buffers; None: the machine's own.
    hosts : int
        Nodes that share the machine's cores and memory.
    """

    machine: Machine
    ranks: int
    tier: str | None = None
    hosts: int = 1

    def _rate(self, alone: float, busy: int) -> float:
        """Return each of ``busy`` cores' payload in bytes per second; ``alone``: one core's in GB/s."""
        busy = min(busy * self.hosts, int(self.machine.cores.value))
        tier = self.machine.tier(self.tier)
        default_tier = self.machine.tier(None)
        alone *= min(1.0, tier.core_gbps.value / default_tier.core_gbps.value)
        return 1e9 * min(alone, tier.gbps.value / CROSSINGS / max(1, busy))

    def copy_s(self, n_bytes: float, busy: int) -> float:
        """Return the seconds in which MPI copies ``n_bytes`` on each of ``busy`` ranks."""
        return n_bytes / self._rate(self.machine.mpi_copy, busy) * self.share(busy)

    def reduction_s(self, n_bytes: float, busy: int) -> float:
        """Return the seconds in which MPI adds ``n_bytes`` to others on each of ``busy`` ranks."""
        return n_bytes / self._rate(self.machine.mpi_sum, busy) * self.share(busy)

    def add_s(self, n_bytes: float, busy: int) -> float:
        """Return the seconds in which each of ``busy`` ranks itself adds ``n_bytes`` to others."""
        return n_bytes / self._rate(self.machine.sum_gbps.value, busy) * self.share(busy)

    def share(self, busy: int) -> float:
        """Return the number of ranks that share a core."""
        return max(1.0, busy * self.hosts / self.machine.cores.value)

    def wait_s(self, messages: float) -> float:
        """Return the seconds of small messages, one after another."""
        return messages * self.machine.latency_us.value * 1e-6 * self.share(self.ranks)

    @property
    def call_s(self) -> float:
        return CALL_US * 1e-6 / self.machine.scalar.value * self.share(self.ranks)

    def bcast_s(self, n_bytes: float) -> float:
        p = self.ranks
        return self.copy_s(3 * n_bytes * (p - 1) / p, p) + self.wait_s(_log(p) + p - 1)

    def reduce_s(self, n_bytes: float) -> float:
        p = self.ranks
        copied, added = self.copy_s(3 * n_bytes, p), self.reduction_s(n_bytes, p)
        return (copied + added) * (p - 1) / p + self.wait_s(2 * _log(p))

    def allreduce_s(self, n_bytes: float) -> float:
        p = self.ranks
        copied, added = self.copy_s(4 * n_bytes, p), self.reduction_s(n_bytes, p)
        return (copied + added) * (p - 1) / p + self.wait_s(2 * _log(p))

    def gather_s(self, n_bytes: float) -> float:
        """Return the seconds in which the root receives ``n_bytes`` from each other rank of the node."""
        return self.copy_s((self.ranks - 1) * n_bytes, 1) + self.wait_s(self.ranks - 1)

    def turns_s(self, n_bytes: float) -> float:
        """Return the seconds of an alltoall or allgather, after which a rank has ``n_bytes`` from all ranks."""
        p = self.ranks
        return self.copy_s(2 * n_bytes * (p - 1) / p, p) + self.wait_s(p - 1)

    def update_s(self, n_bytes: float, busy: int) -> float:
        """Return the seconds in which each of ``busy`` ranks updates ``n_bytes`` of parameters, with momentum."""
        return self.add_s(UPDATE_VECTORS * n_bytes, busy)

    def shared_s(self, n_bytes: float, rows: int) -> float:
        """Return the seconds in which reducers sum ``rows`` vectors in shared memory, and update, in one pass."""
        reducers = max(1, min(self.ranks, int(self.machine.cores.value / self.hosts)))
        moved = (rows + STATE) * n_bytes / reducers
        return self.add_s(moved / CROSSINGS, reducers) + self.wait_s(GATES * _log(self.ranks))


def _log(n: int) -> int:
    return ceil(log2(max(2, n)))


def local_s(node: Node, way: ExchangePlan, n_bytes: float) -> float:
    """Return the seconds of an exchange inside a node: no less than memory takes for the counted bytes."""
    moved, _ = counted(replace(way, ranks=node.ranks, nodes=1, n_servers=1), n_bytes)
    tier = node.machine.tier(node.tier)
    return max(_slowest_s(node, way, n_bytes), moved / (tier.gbps.value * 1e9))


def _slowest_s(node: Node, way: ExchangePlan, n_bytes: float) -> float:
    """Return the seconds of the busiest rank, including its waiting."""
    p, w, canonical = node.ranks, way.n_workers, way.is_canonical
    if way.collective == "null" or p == 1:
        return node.update_s(n_bytes, p)
    if way.collective in ("shared", "hierarchical"):
        return node.shared_s(n_bytes, w if way.nodes == 1 else p) + node.call_s
    pickled = node.copy_s(PICKLES * n_bytes, p) if way.collective == "object" else 0.0
    if way.mode == "allreduce":
        if canonical:
            seconds = 2 * node.turns_s(n_bytes) + node.add_s(n_bytes, p)
        else:
            seconds = node.allreduce_s(n_bytes) + (_log(p) - 1) * pickled
        return seconds + pickled + node.update_s(n_bytes, p) + 2 * node.call_s
    k = way.n_servers
    if way.collective == "object" or canonical:
        gathered = node.gather_s(n_bytes / k) + node.add_s(w * n_bytes / k, k)
        if way.collective == "object":
            gathered += node.copy_s(w * n_bytes, 1)  # unpickling
    else:
        gathered = node.reduce_s(n_bytes)
    return gathered + node.update_s(n_bytes / k, k) + node.bcast_s(n_bytes) + pickled + 2 * node.call_s


BUCKET_BYTES = float(1 << 17)  # as in psframe.collectives.hierarchical, which needs an MPI to be imported


def between_s(way: ExchangePlan, n_bytes: float, link: Link, codec: Codec | None = None) -> float:
    """Return the seconds of an exchange, encoded by ``codec``, on the busiest link between nodes."""
    n, w, here = way.nodes, way.n_workers, way.here
    rate, latency = link.gbit.value * 1e9 / 8, link.latency_us.value * 1e-6
    if n == 1 or way.collective == "null":
        return 0.0
    canonical = way.is_canonical
    sent = codec.share * n_bytes if codec else n_bytes
    if way.collective in ("shared", "hierarchical"):
        if codec:
            return 2 * _log(n) * latency + (n - 1 if codec.sent_once(n) else 2 * (n - 1) / n) * sent / rate
        if canonical:  # up a chain of nodes and down again, by bucket
            return 2 * (n - 1) * (latency + min(n_bytes, BUCKET_BYTES) / rate) + n_bytes / rate
        return 2 * _log(n) * latency + 2 * (n - 1) / n * n_bytes / rate
    outside = w * (n - 1) / n
    k = min(way.n_servers, n)
    # parameters to all: from one server through a tree or a scatter and a ring; each of several sends its share to all
    spread = (n_bytes if n == 2 else (1 if k > 1 else 2) * n_bytes * (n - 1) / n) / rate + _log(n) * latency
    if way.mode == "allreduce":
        if canonical or codec or way.collective == "object":  # each rank by itself
            ring = sent * (way.ranks - 1) / way.ranks  # neighbours are on one node, except at its ends
            return (here * sent * (n - 1) / n + ring) / rate + 2 * (n - 1) * latency
        return 2 * (n - 1) / n * n_bytes / rate + 2 * _log(n) * latency
    if canonical or codec or way.collective == "object":
        arriving = outside * sent / k / rate
    else:  # reduced on the way, but not by node
        arriving = here * n_bytes * (n - 1) / n / rate
    return arriving + spread + 2 * latency
