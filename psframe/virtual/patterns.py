"""Traffic of collectives (:class:`Pattern`): what comes into a node for one of its ranks, and what passes inside it."""

from collections.abc import Mapping, Sequence
from enum import Enum

from psframe.predict.exchange import Node


class Pattern(Enum):
    """Kind of a collective, by what a rank reads of all parts: nothing, one, their sum, all, or a share of each."""

    NOTHING = "nothing"
    BROADCAST = "one"
    SUM = "sum"
    GATHER = "all, on one rank"
    ALLGATHER = "all"
    ALLTOALL = "a share"


def flows(pattern: Pattern, nodes: Sequence[int], here: int, brought: Mapping[int, int]) -> list[tuple[int, int, int]]:
    """Return what comes into node ``here`` for one of its ranks: source, target and bytes.

    Algorithms are those of MPI libraries for long messages (Thakur, Rabenseifner and Gropp 2005): broadcasts go from
    node to node, sums in a ring. What all ranks of a node read comes once, and each waits for its share.

    Parameters
    ----------
    nodes : sequence of int
        Nodes of the collective's ranks.
    brought : mapping of int to int
        Bytes of the ranks' parts, by node.
    """
    order, n_here = sorted(set(nodes)), nodes.count(here)
    before = order[order.index(here) - 1]
    if pattern is Pattern.NOTHING:
        return []
    if pattern is Pattern.BROADCAST:
        root = max(brought, key=lambda node: brought[node])
        found = {before: sum(brought.values()) / n_here} if here != root else {}
    elif pattern is Pattern.SUM:
        found = {before: 2 * (1 - 1 / len(order)) * brought[here] / n_here**2}
    else:
        readers = {Pattern.GATHER: 1, Pattern.ALLGATHER: n_here, Pattern.ALLTOALL: len(nodes)}[pattern]
        found = {node: n_bytes / readers for node, n_bytes in brought.items() if node != here}
    return [(source, here, int(n_bytes)) for source, n_bytes in found.items() if n_bytes >= 1]


def inside_s(pattern: Pattern, node: Node, nodes: Sequence[int], here: int, brought: Mapping[int, int]) -> float:
    """Return the seconds of the same collective's traffic inside a node."""
    total, n_here = sum(brought.values()), nodes.count(here)
    if pattern is Pattern.NOTHING:
        return 0.0
    if pattern is Pattern.BROADCAST:
        return node.bcast_s(total)
    if pattern is Pattern.SUM:
        return node.allreduce_s(brought[here] / n_here)
    if pattern is Pattern.GATHER:
        return node.copy_s(brought[here] * (1 - 1 / n_here), 1) + node.wait_s(n_here - 1)
    return node.turns_s(total if pattern is Pattern.ALLGATHER else total / len(nodes))
