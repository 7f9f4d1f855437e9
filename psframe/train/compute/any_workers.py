"""Computation for ``train.reproducible: any_workers`` (:class:`Tree`): bitwise independent of the number of workers.

A step's batch is cut into a fixed number of blocks. Each block's gradient is computed separately; all are summed in a
balanced binary tree over the block numbers, of which every worker computes a subtree (``psframe.collectives.order``).

Where samples meet those of all workers, a worker's blocks pass the layers in step with each other, and a layer's
gradients are summed as soon as a block has them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from psframe import compiled
from psframe.collectives.base import cut
from psframe.collectives.order import merges, owned
from psframe.config.schema import Train
from psframe.errors import UserError
from psframe.memory.allocator import Allocator
from psframe.nn.base import Arrays, LayerHook, Pass
from psframe.nn.network import Network
from psframe.nn.progress import Batch
from psframe.sync.sampler import BalancedSampler, Sampler
from psframe.train.compute.local import Work
from psframe.train.compute.meeting import Workers
from psframe.train.data.batches import Batches


def check(train: Train, n_workers: int) -> None:
    """Raise UserError if keys of ``train`` contradict each other, or there are more workers than blocks."""
    if train.reproducible != "any_workers":
        if train.global_batch is not None:
            raise UserError(
                f"train.global_batch is for train.reproducible=any_workers, got {train.global_batch} with "
                f"{train.reproducible}; give train.batch_size, the samples of a worker, and train.global_batch=null"
            )
        return
    n_blocks, n_global = train.blocks, train.global_batch
    if n_global is None:
        raise UserError(
            "train.reproducible: any_workers must know the samples of a step over all workers, got no "
            "train.global_batch; give it instead of train.batch_size, as train.global_batch=128"
        )
    if n_blocks & (n_blocks - 1):
        raise UserError(
            f"train.blocks must be a power of two, got {n_blocks}; give train.blocks={1 << n_blocks.bit_length()}"
        )
    if n_global < n_blocks:
        raise UserError(
            f"train.global_batch must have a sample for each of train.blocks, got {n_global} for {n_blocks} blocks; "
            f"give train.global_batch={n_blocks} or more, or fewer blocks"
        )
    if n_workers > n_blocks:
        raise UserError(
            f"train.reproducible: any_workers must have a block for every worker, got {n_workers} workers for "
            f"{n_blocks} blocks; start fewer ranks, or give train.blocks={1 << (n_workers - 1).bit_length()}"
        )


def unused(train: Train) -> list[str]:
    """Return the keys of ``train`` that were given and that this kind of run does not use."""
    key = "batch_size" if train.reproducible == "any_workers" else "blocks"
    return [f"train.{key}"] if getattr(train, key) != getattr(Train(), key) else []


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

    def cut(self, n: int, worker: int) -> slice:
        blocks = owned(self.n_workers, worker, self.n_blocks)
        return slice(n * blocks.start // self.n_blocks, n * blocks.stop // self.n_blocks)


def sampler(n_samples: int, n_workers: int, train: Train, balance: str = "none") -> Sampler:
    """Return the sampler that cuts an epoch into steps as ``train`` and ``sync.balance`` ask."""
    if train.reproducible != "any_workers" or train.global_batch is None:
        make = BalancedSampler if balance == "speed" and n_workers > 1 else Sampler
        return make(n_samples, n_workers, train.batch_size, train.seed)
    n_blocks, n_global = train.blocks, min(train.global_batch, n_samples)
    widest = owned(n_workers, n_workers - 1, n_blocks)
    batch_size = -(-n_global * (widest.stop - widest.start) // n_blocks)
    return BlockSampler(n_samples, n_workers, batch_size, train.seed, n_global=n_global, n_blocks=n_blocks)


def n_in_step(sampler: Sampler, worker: int | None, network: Network) -> int:
    """Return the number of a worker's batches that wait for their backward passes at a time."""
    if worker is None or network.meets != "workers" or not isinstance(sampler, BlockSampler):
        return 1
    blocks = owned(sampler.n_workers, worker, sampler.n_blocks)
    return blocks.stop - blocks.start


def work(
    sampler: Sampler,
    worker: int | None,
    network: Network,
    batches: Batches,
    allocator: Allocator,
    others: Workers | None = None,
) -> Work:
    """Return the computation of the steps of ``sampler``, on a network bound to its arena."""
    if isinstance(sampler, BlockSampler):
        return Tree(sampler, worker, network, batches, allocator, others)
    return Work(sampler, network, batches, others)


class Tree(Work):
    """Computation of a worker's blocks one by one; sums their gradients in tree order, into the arena.

    Parameters
    ----------
    worker : int or None
        None on a rank that computes no gradients.
    allocator : Allocator
        Allocates the stack of partial sums.
    """

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
        self.own = owned(sampler.n_workers, worker, self.n_blocks) if worker is not None else slice(0, 0)
        self.n_own, grads = self.own.stop - self.own.start, network.arena.grads
        n_sums = max(0, self.n_own.bit_length() - 1)
        stack = [*allocator.zeros((n_sums, len(grads)), np.float32, "gradients")]
        #: by block: the sum of its gradient and of the partial sums that it completes, and the target vector
        self.sums: list[tuple[Any, np.ndarray]] = []
        height = 0
        for number, n_merges in enumerate(merges([1] * self.n_own) if self.n_own > 1 else ()):
            height -= n_merges
            target = stack[height] if number < self.n_own - 1 else grads
            rows = [*stack[height : height + n_merges], grads]
            self.sums.append((compiled.elementwise.Mean(rows, [0] * n_merges + [n_merges]), target))
            height += 1

    def gradients(
        self, mine: np.ndarray, n_samples: int, epoch: int, losses: np.ndarray, hook: LayerHook | None = None
    ) -> float:
        if self.network.meets == "workers" and self.sums:
            return self._in_step(mine, n_samples, epoch, losses)
        loading_s = 0.0
        for number, samples in self._blocks(mine, n_samples):
            loading_s += super().gradients(samples, n_samples, epoch, losses[self.own.start + number :], hook)
            if self.sums:
                mean, target = self.sums[number]
                mean.into(target)
        return loading_s

    def _blocks(self, mine: np.ndarray, n_samples: int) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the numbers of the worker's blocks, from 0 on, and their samples."""
        first = n_samples * self.own.start // self.n_blocks
        for number in range(self.n_own):
            block = cut(n_samples, self.n_blocks, self.own.start + number)
            yield number, mine[block.start - first : block.stop - first]

    def _in_step(self, mine: np.ndarray, n_samples: int, epoch: int, losses: np.ndarray) -> float:
        """Do the same with all blocks in step, summing gradients layer by layer."""
        began, batches, seed = perf_counter(), [], self.sampler.seed
        for number, samples in self._blocks(mine, n_samples):
            first = number * self.sampler.max_batch
            x, done = self.batches.load("train", samples, epoch, first), partial(self._add, number, not len(samples))
            state = Pass(True, seed, epoch, samples, first, done=done)
            batches.append(Batch(x, partial(self.batches.targets_of, samples, epoch), state))
        loading_s = perf_counter() - began
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
