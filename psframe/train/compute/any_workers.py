"""Parts of a run with ``train.reproducible: any_workers``, bitwise independent of the number of workers (:func:`work`).

A step's batch is cut into a fixed number of blocks. Each block's gradient is computed separately; all are summed in a
balanced binary tree over the block numbers, of which every worker computes a subtree (``psframe.collectives.order``).
"""

from collections.abc import Sequence
from typing import TypeGuard

from psframe.cluster.cluster import Cluster
from psframe.cluster.roles import Team
from psframe.collectives.order import owned
from psframe.config import effect
from psframe.config.schema import Train
from psframe.errors import UserError
from psframe.memory.allocator import Allocator
from psframe.nn.network import Network
from psframe.sync.balance import Divisible
from psframe.sync.sampler import BalancedSampler, Sampler
from psframe.train.compute.blocks import BlockSampler, LendingSampler
from psframe.train.compute.lending import Lending, Outboxes
from psframe.train.compute.local import Work
from psframe.train.compute.meeting import Workers
from psframe.train.compute.tree import Tree
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
    return effect.given("train", train, [key])


def sampler(n_samples: int, n_workers: int, train: Train, balance: str = "none", nodes: Sequence[int] = ()) -> Sampler:
    """Return the sampler that cuts an epoch into steps as ``train`` and ``sync.balance`` ask.

    ``nodes`` are those of the workers.
    """
    divided = balance == "speed" and n_workers > 1
    if train.reproducible != "any_workers" or train.global_batch is None:
        make = BalancedSampler if divided else Sampler
        return make(n_samples, n_workers, train.batch_size, train.seed)
    n_blocks, n_global = train.blocks, min(train.global_batch, n_samples)
    widest = owned(n_workers, n_workers - 1, n_blocks)
    batch_size = -(-n_global * (widest.stop - widest.start) // n_blocks)
    of_step = {"n_global": n_global, "n_blocks": n_blocks}
    if divided and n_blocks > n_workers:  # nobody has a block to lend otherwise
        return LendingSampler(n_samples, n_workers, batch_size, train.seed, **of_step, nodes=nodes)
    return BlockSampler(n_samples, n_workers, batch_size, train.seed, **of_step)


def divides(sampler: Sampler) -> TypeGuard[Divisible]:
    """Return True if workers may have shares of other sizes."""
    return isinstance(sampler, BalancedSampler | LendingSampler)


def n_in_step(sampler: Sampler, worker: int | None, network: Network) -> int:
    """Return the number of a worker's batches that wait for their backward passes at a time."""
    if worker is None or network.meets != "workers" or not isinstance(sampler, BlockSampler):
        return 1
    blocks = sampler.owned(worker)
    return blocks.stop - blocks.start


def work(
    sampler: Sampler,
    cluster: Cluster,
    team: Team,
    network: Network,
    batches: Batches,
    allocator: Allocator,
    others: Workers | None = None,
) -> Work:
    """Return the computation of the steps of ``sampler``, on a network bound to its arena."""
    if isinstance(sampler, LendingSampler):
        outboxes = Outboxes(cluster, team, sampler.nodes, len(network.arena.grads), sampler.n_rows, allocator)
        return Lending(sampler, team.worker, network, batches, allocator, outboxes)
    if isinstance(sampler, BlockSampler):
        return Tree(sampler, team.worker, network, batches, allocator, others)
    return Work(sampler, network, batches, others)
