"""Samplers of steps in blocks of samples (:class:`BlockSampler`), which do not depend on the number of workers."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from psframe.collectives.order import nodes, owned
from psframe.sync.sampler import Sampler


@dataclass
class BlockSampler(Sampler):
    """Sampler of steps independent of the workers: ``n_global`` samples in ``n_blocks`` blocks.

    ``batch_size`` is a worker's maximum per step.
    """

    n_global: int = 0
    n_blocks: int = 1

    @property
    def samples_per_step(self) -> int:
        return self.n_global

    @property
    def max_batch(self) -> int:
        """Maximum samples of one computation: those of a block."""
        return -(-self.global_batch // self.n_blocks)

    def owned(self, worker: int) -> slice:
        """Return the blocks of a worker's node of the tree."""
        return owned(self.n_workers, worker, self.n_blocks)

    def span(self, n: int, blocks: slice) -> slice:
        """Return the place of consecutive blocks within a step's ``n`` samples."""
        return slice(n * blocks.start // self.n_blocks, n * blocks.stop // self.n_blocks)

    def cut(self, n: int, worker: int) -> slice:
        return self.span(n, self.owned(worker))


@dataclass(frozen=True)
class Loan:
    """Consecutive ``blocks`` of the worker ``owner`` that the worker ``helper`` computes in its place."""

    owner: int
    helper: int
    blocks: slice


@dataclass
class LendingSampler(BlockSampler):
    """Sampler in which workers compute blocks of others, so that each has as many as its speed asks for.

    Attributes
    ----------
    nodes : sequence of int
        Node of each worker: blocks are lent within it first.
    loans : list of Loan
        By block; a worker lends the last of its blocks. A new list with each division.
    """

    nodes: Sequence[int] = ()
    loans: list[Loan] = field(init=False, default_factory=list)

    @property
    def even(self) -> list[int]:
        """Blocks of each worker's node."""
        return [blocks.stop - blocks.start for blocks in map(self.owned, range(self.n_workers))]

    @property
    def sizes(self) -> list[int]:
        """Blocks that each worker computes in a step."""
        sizes = self.even
        for loan in self.loans:
            n_blocks = loan.blocks.stop - loan.blocks.start
            sizes[loan.owner] -= n_blocks
            sizes[loan.helper] += n_blocks
        return sizes

    @property
    def most(self) -> int:
        """Most blocks of a worker."""
        return self.n_blocks

    @property
    def n_rows(self) -> int:
        """Most nodes of the tree that a worker computes for others in a step."""
        return max(1, self.n_blocks.bit_length() - 1)

    @property
    def shares(self) -> list[int]:
        """Samples of each worker in a full step."""
        return [sum(map(self._size, self.computed(worker))) for worker in range(self.n_workers)]

    def _size(self, blocks: slice) -> int:
        place = self.span(self.samples_per_step, blocks)
        return place.stop - place.start

    def kept(self, worker: int) -> slice:
        """Return the blocks of its node that a worker computes itself."""
        own = self.owned(worker)
        return slice(own.start, min([own.stop, *(loan.blocks.start for loan in self.loans if loan.owner == worker)]))

    def computed(self, worker: int) -> list[slice]:
        """Return the blocks that a worker computes, in this order: first those of others, which these wait for."""
        return [*(loan.blocks for loan in self.loans if loan.helper == worker), self.kept(worker)]

    def divide(self, sizes: list[int]) -> bool:
        """Let the workers compute so many blocks each from the next step on; return True if any has changed.

        A worker that would compute more nodes of the tree than :attr:`n_rows` for others computes fewer blocks.
        """
        loans = arranged([self.owned(worker) for worker in range(self.n_workers)], sizes, self.n_rows, self.nodes)
        changed = loans != self.loans
        if changed:
            self.loans = loans
        return changed

    def samples(self, order: np.ndarray, step: int, worker: int) -> np.ndarray:
        n, begin = self.samples_in(step), self.cursor + step * self.samples_per_step
        spans = [self.span(n, blocks) for blocks in self.computed(worker)]
        return np.concatenate([order[begin + span.start : begin + span.stop] for span in spans])


def arranged(owners: Sequence[slice], sizes: Sequence[int], most: int, node_of: Sequence[int] = ()) -> list[Loan]:
    """Return loans by which each worker computes ``sizes`` of blocks, or as near to that as can be.

    Workers of the same node help first, and of these the nearest by number.

    Parameters
    ----------
    owners : sequence of slice
        The blocks of each worker, in their order.
    most : int
        Most nodes of the tree that a worker computes for others.
    node_of : sequence of int
        Node of each worker; empty if all are on one.
    """
    node_of = node_of or [0] * len(owners)
    room = [max(0, size - (own.stop - own.start)) for own, size in zip(owners, sizes, strict=True)]
    rows, loans = [most] * len(owners), []
    for owner, own in enumerate(owners):
        end, least = own.stop, own.start + max(1, sizes[owner])
        distances = [(node != node_of[owner], abs(worker - owner), worker) for worker, node in enumerate(node_of)]
        for _, _, helper in sorted(distances):
            n = min(end - least, room[helper])
            while n > 0 and len(nodes(slice(end - n, end))) > rows[helper]:
                n -= 1
            if n > 0:
                loans.append(Loan(owner, helper, slice(end - n, end)))
                rows[helper] -= len(nodes(slice(end - n, end)))
                room[helper] -= n
                end -= n
    return sorted(loans, key=lambda loan: loan.blocks.start)
