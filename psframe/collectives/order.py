"""Order of a sum with the same bits for any number of workers (:func:`merges`): a balanced binary tree.

The batch of a step is cut into blocks, a power of two, whose gradients are summed in a tree in block order. Every
worker has a node of the tree: with 2^k workers, the nodes k levels below the root; with more workers, the first of
these nodes are halved. A worker sums its own subtree, and the collective adds the nodes above. Their tree follows from
the workers' *widths*, the shares of the blocks that their nodes span.
"""

from collections.abc import Sequence
from itertools import pairwise


def widths(n_workers: int) -> list[int]:
    """Return the width of every worker's node: 2, or 1 for a halved one."""
    n_nodes = 1 << (n_workers.bit_length() - 1)
    halved = n_workers - n_nodes
    return [1] * (2 * halved) + [2] * (n_nodes - halved)


def owned(n_workers: int, worker: int, n_blocks: int) -> slice:
    """Return a worker's slice of ``n_blocks`` blocks, a power of two and at least the number of workers."""
    spans = widths(n_workers)
    begin, total = sum(spans[:worker]), sum(spans)
    return slice(begin * n_blocks // total, (begin + spans[worker]) * n_blocks // total)


def nodes(blocks: slice) -> list[slice]:
    """Return the largest nodes of the tree that make up consecutive blocks, in their order."""
    found, begin = [], blocks.start
    while begin < blocks.stop:
        width = begin & -begin or 1 << blocks.stop.bit_length()  # of the largest node that begins here
        while begin + width > blocks.stop:
            width //= 2
        found.append(slice(begin, begin + width))
        begin += width
    return found


def stacked(spans: Sequence[int]) -> list[tuple[slice, int]]:
    """Return the rows and width of each node left after adding adjacent nodes of equal width, while there are any.

    ``spans`` are widths of consecutive rows, from a position in the tree where a node of any of these widths may begin.
    """
    stack: list[tuple[slice, int]] = []
    for number, width in enumerate(spans):
        begin = number
        while stack and stack[-1][1] == width:
            begin = stack.pop()[0].start
            width *= 2
        stack.append((slice(begin, number + 1), width))
    return stack


def merges(spans: Sequence[int]) -> list[int]:
    """Return the number of additions of the two topmost stack entries after each push, for rows of these widths."""
    depths = [len(stacked(spans[:n])) for n in range(len(spans) + 1)]
    return [before + 1 - after for before, after in pairwise(depths)]
