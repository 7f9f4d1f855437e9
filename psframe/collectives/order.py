"""The canonical order of a sum that has the same bits at any number of workers: a balanced binary tree.

The batch of a step is cut into blocks, a power of two, and their gradients are summed in a tree over the numbers of
the blocks, of which every worker has a node: with 2^k workers, those that are k below the root; with more, the first of
these are halved. So a worker sums its node by itself, and the collective adds the nodes above. Their tree is that of
the workers' *widths*: how much of the blocks a worker's node spans.
"""

from collections.abc import Sequence
from itertools import pairwise


def widths(n_workers: int) -> list[int]:
    """Return the width of every worker's node: 2, or 1 for half of such a one."""
    whole = 1 << (n_workers.bit_length() - 1)
    halved = n_workers - whole
    return [1] * (2 * halved) + [2] * (whole - halved)


def owned(n_workers: int, worker: int, n_blocks: int) -> slice:
    """Return which of ``n_blocks`` blocks, a power of two and no fewer than the workers, are a worker's."""
    spans = widths(n_workers)
    begin, total = sum(spans[:worker]), sum(spans)
    return slice(begin * n_blocks // total, (begin + spans[worker]) * n_blocks // total)


def stacked(spans: Sequence[int]) -> list[tuple[slice, int]]:
    """Return the nodes that are left when every two of one width that meet were added: their rows and their widths.

    ``spans`` are consecutive, from a place in the tree where a node as wide as any of them may begin.
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
    """Return how often the two topmost of a stack are added when a row was put on it, for rows of these widths."""
    depths = [len(stacked(spans[:n])) for n in range(len(spans) + 1)]
    return [before + 1 - after for before, after in pairwise(depths)]
