"""Traffic of collectives (:class:`Pattern`): what comes into a node for one of its ranks, and what passes inside it."""

from collections.abc import Mapping
from enum import Enum

from psframe.predict.exchange import Node

ByNode = Mapping[int, int]


class Pattern(Enum):
    """Kind of a collective, by what a rank reads of all parts: nothing, one, their sum, all, or its share of each."""

    NOTHING = "nothing"
    BROADCAST = "one"
    SUM = "sum"
    REDUCE = "sum, on one rank"
    GATHER = "all, on one rank"
    ALLGATHER = "all"
    ALLTOALL = "a share"


def flows(pattern: Pattern, sizes: ByNode, here: int, brought: ByNode) -> list[tuple[int, int, int]]:
    """Return what comes into node ``here`` for one of its ranks: source, target and bytes.

    Algorithms are those of MPI libraries for long messages (Thakur, Rabenseifner and Gropp 2005): broadcasts go from
    node to node, sums in a ring. What all ranks of a node read comes once, and each waits for its share of that.

    Parameters
    ----------
    sizes : mapping of int to int
        Number of the collective's ranks on each node that has any, in the order of the nodes.
    brought : mapping of int to int
        Bytes of the ranks' parts, by node; of ``ALLTOALL``, of the shares that are this rank's.
    """
    if pattern is Pattern.NOTHING:
        return []
    order, n_here = list(sizes), sizes[here]
    before = order[order.index(here) - 1]
    if pattern is Pattern.BROADCAST:
        root = max(brought, key=lambda node: brought[node])
        found = {before: sum(brought.values()) / n_here} if here != root else {}
    elif pattern in (Pattern.SUM, Pattern.REDUCE):
        readers = n_here if pattern is Pattern.SUM else 1
        found = {before: 2 * (1 - 1 / len(order)) * brought[here] / n_here / readers}
    else:
        readers = n_here if pattern is Pattern.ALLGATHER else 1
        found = {node: n_bytes / readers for node, n_bytes in brought.items() if node != here}
    return [(source, here, int(n_bytes)) for source, n_bytes in found.items() if n_bytes >= 1]


def inside_s(pattern: Pattern, node: Node, sizes: ByNode, here: int, brought: ByNode) -> float:
    """Return the seconds of the same collective's traffic inside a node."""
    if pattern is Pattern.NOTHING:
        return 0.0
    total, n_here = sum(brought.values()), sizes[here]
    if pattern is Pattern.BROADCAST:
        return node.bcast_s(total)
    if pattern in (Pattern.SUM, Pattern.REDUCE):
        return node.allreduce_s(brought[here] / n_here)
    if pattern is Pattern.GATHER:
        return node.copy_s(brought[here] * (1 - 1 / n_here), 1) + node.wait_s(n_here - 1)
    return node.turns_s(total)
