"""Pages of a mapping on several NUMA nodes in a proportion (:func:`bind`): the kernel's way, or run by run.

Linux 6.9 and later interleave pages by weights, which belong to the machine and are root's to set. Where they are other
than those that were asked for, the mapping is cut into runs of pages, each of one node.
"""

import errno
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np

from psframe import compiled
from psframe.memory.sysfs import Tree

WEIGHTS = "sys/kernel/mm/mempolicy/weighted_interleave"
#: most runs of a mapping; each is an area of the kernel's, of which a process may have MOST_AREAS, where it is not told
MOST_RUNS, MOST_AREAS = 1024, 65_530


def bind(memory: np.ndarray, nodes: Sequence[int], weights: Sequence[int], unit_bytes: int) -> None:
    """Set where the pages of a mapping will lie, uint8 (n,), before its first touch.

    A node that is full leaves its pages to others. OSError as :func:`psframe.compiled.numa.mbind`.

    Parameters
    ----------
    nodes : sequence of int
    weights : sequence of int
        Positive, one for each node.
    unit_bytes : int
        Size of the pages: runs begin at multiples of it.
    """
    if has_weights(Tree("/"), nodes, weights):
        try:
            return compiled.numa.mbind(memory, "weighted", nodes)
        except OSError as error:
            if error.errno != errno.EINVAL:  # the kernel has the files, but not the policy
                raise
    for number, begin, end in runs(-(-len(memory) // unit_bytes), weights, _most_runs(len(weights))):
        compiled.numa.mbind(memory[begin * unit_bytes : end * unit_bytes], "preferred", nodes[number : number + 1])
    return None


def has_weights(tree: Tree, nodes: Sequence[int], weights: Sequence[int]) -> bool:
    """Return True if the kernel's own weights of the nodes are in this proportion."""
    own = [tree.integer(f"{WEIGHTS}/node{node}") or 0 for node in nodes]
    return own[0] > 0 and all(own[0] * weight == weights[0] * other for other, weight in zip(own, weights, strict=True))


def _most_runs(least: int) -> int:
    """Return the most runs of the next mapping: a part of the areas that the kernel lets this process have yet."""
    try:
        with open("/proc/self/maps", "rb") as lines:
            left = (Tree("/").integer("proc/sys/vm/max_map_count") or MOST_AREAS) - sum(1 for _ in lines)
    except OSError:
        left = MOST_AREAS // 2
    return max(least, min(MOST_RUNS, left // 32))


def runs(n_units: int, weights: Sequence[int], most: int = MOST_RUNS) -> Iterator[tuple[int, int, int]]:
    """Yield runs of pages, in turn of each node: the number of the node, the first page and the one after the last.

    All nodes together have all ``n_units`` pages, each the part that its weight is of their sum, to a page a round.
    """
    ends = [0, *accumulate(weights)]
    n_rounds = max(1, min(n_units // ends[-1], most // len(weights)))

    def page(turn: int, weight: int) -> int:
        """Return the page at which a node's run begins that has so much weight before it in its round."""
        return n_units * (turn * ends[-1] + weight) // (n_rounds * ends[-1])

    for turn in range(n_rounds):
        for number, (before, after) in enumerate(pairwise(ends)):
            begin, end = page(turn, before), page(turn, after)
            if end > begin:
                yield number, begin, end
