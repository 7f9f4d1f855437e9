"""Computation of a worker's blocks (:class:`Tree`), whose gradients are summed in a balanced binary tree.

Where samples meet those of all workers, a worker's blocks pass the layers in step with each other, and a layer's
gradients are summed as soon as a block has them.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np

from psframe import compiled
from psframe.collectives.base import cut
from psframe.collectives.order import merges
from psframe.memory.allocator import Allocator
from psframe.nn.base import Arrays, LayerHook, Pass
from psframe.nn.network import Network
from psframe.nn.progress import Batch
from psframe.record.clock import CLOCK
from psframe.train.compute.blocks import BlockSampler
from psframe.train.compute.local import Work
from psframe.train.compute.meeting import Workers
from psframe.train.data.batches import Batches

Fold = tuple[Any, np.ndarray]  #: a sum of rows, not yet computed, and its target


class Tree(Work):
    """Computation of a worker's blocks one by one; sums their gradients in tree order, into the arena.

    Parameters
    ----------
    worker : int or None
        None on a rank that computes no gradients.
    allocator : Allocator
        Allocates the stack of partial sums.
    """

    sampler: BlockSampler

    def __init__(
        self,
        sampler: BlockSampler,
        worker: int | None,
        network: Network,
        batches: Batches,
        allocator: Allocator,
        others: Workers | None = None,
    ):
        super().__init__(sampler, network, batches, others)
        self.n_losses = self.n_blocks = sampler.n_blocks
        self.several = self.n_blocks > sampler.n_workers
        self.own = sampler.owned(worker) if worker is not None else slice(0, 0)
        self.n_own = self.own.stop - self.own.start
        n_sums = max(0, self.most_blocks.bit_length() - 1)
        self._stack = [*allocator.zeros((n_sums, len(network.arena.grads)), np.float32, "gradients")]

    @property
    def most_blocks(self) -> int:
        """Most blocks of a node that this rank sums up."""
        return self.n_own

    @cached_property
    def sums(self) -> list[Fold]:
        """Folds of the own blocks, in their order; none of a single one, which is the total."""
        grads = self.network.arena.grads
        return self.folds([1] * self.n_own, [grads] * self.n_own, grads) if self.n_own > 1 else []

    def folds(self, spans: Sequence[int], rows: Sequence[np.ndarray], total: np.ndarray) -> list[Fold]:
        """Return, by row of a subtree, its sum with the partial sums that it completes; the last one's is ``total``.

        Parameters
        ----------
        spans : sequence of int
            Widths of the nodes whose gradients the rows have.
        """
        folds, height = [], 0
        for number, (n_merges, row) in enumerate(zip(merges(spans), rows, strict=True)):
            height -= n_merges
            target = self._stack[height] if number < len(spans) - 1 else total
            summed = compiled.elementwise.Mean(
                [*self._stack[height : height + n_merges], row], [0] * n_merges + [n_merges]
            )
            folds.append((summed, target))
            height += 1
        return folds

    def gradients(
        self, mine: np.ndarray, n_samples: int, epoch: int, losses: np.ndarray, hook: LayerHook | None = None
    ) -> float:
        if self.network.meets == "workers" and self.sums:
            return self._in_step(mine, n_samples, epoch, losses)
        loading_s = 0.0
        own = range(self.own.start, self.own.stop)
        for block, samples in self.blocks(own, mine, n_samples):
            loading_s += super().gradients(samples, n_samples, epoch, losses[block:], hook)
            if self.sums:
                mean, target = self.sums[block - self.own.start]
                mean.into(target)
        return loading_s

    def blocks(self, numbers: Iterable[int], mine: np.ndarray, n_samples: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield blocks and their samples, which follow each other in ``mine``."""
        first = 0
        for block in numbers:
            span = self.sampler.span(n_samples, slice(block, block + 1))
            end = first + span.stop - span.start
            yield block, mine[first:end]
            first = end

    def _in_step(self, mine: np.ndarray, n_samples: int, epoch: int, losses: np.ndarray) -> float:
        """Do the same with all blocks in step, summing gradients layer by layer."""
        began, batches, seed = CLOCK.now(), [], self.sampler.seed
        own = range(self.own.start, self.own.stop)
        for number, (_, samples) in enumerate(self.blocks(own, mine, n_samples)):
            first = number * self.sampler.max_batch
            x, done = self.batches.load("train", samples, epoch, first), partial(self._add, number, not len(samples))
            state = Pass(True, seed, epoch, samples, first, done=done)
            batches.append(Batch(x, partial(self.batches.targets_of, samples, epoch), state))
        loading_s = CLOCK.now() - began
        for number, (loss, _) in enumerate(self.network.gradients_in_step(batches)):
            losses[self.own.start + number] += loss
        return loading_s

    def _add(self, number: int, is_empty: bool, grads: Arrays | None) -> None:
        """Sum up a layer's gradients over the blocks so far; None: those of tensors that are not trained."""
        arena, (mean, target) = self.network.arena, self.sums[number]
        for own in self._places(grads):
            if is_empty:
                arena.grads[own] = 0
            mean.into(target[own], own.start)

    def _places(self, grads: Arrays | None) -> list[slice]:
        """Return the places of a layer's trained tensors in the arena's vectors; of None, that of all others."""
        arena, n_trained = self.network.arena, self.network.arena.layout.n_trained
        if grads is None:
            return [slice(n_trained, arena.layout.size)]
        return [place for place in map(arena.place_of, grads.values()) if place.start < n_trained]

    def tested(self, n_test: int, n_ranks: int, rank: int) -> tuple[slice, int]:
        """Return a rank's share in full batches, equal for any number of ranks, and one sum per batch."""
        batch_size = self.sampler.max_batch
        n_batches = -(-n_test // batch_size)
        share = cut(n_batches, n_ranks, rank)
        return slice(share.start * batch_size, min(share.stop * batch_size, n_test)), n_batches
