"""Construction of a rank's computation (:func:`work`): a batch, micro-batches, a stage or a shard of the network."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import prod

import numpy as np

from psframe.cluster.cluster import Cluster
from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena
from psframe.nn.base import Shape
from psframe.nn.network import Network
from psframe.nn.threads import Threads
from psframe.record.trace import Trace
from psframe.sync.sampler import Sampler
from psframe.train.compute import any_workers
from psframe.train.compute.local import Work
from psframe.train.compute.parallel.channel import Channel, Far, Near
from psframe.train.compute.parallel.full_model import FullModel
from psframe.train.compute.parallel.grid import Grid
from psframe.train.compute.parallel.hybrid import Hybrid, parts_of, place
from psframe.train.compute.parallel.pipeline import Pipeline, micro
from psframe.train.compute.parallel.schedule import Kind, most_kept
from psframe.train.compute.parallel.split import ShardGroup, Split
from psframe.train.data.batches import Batches
from psframe.train.plan.plan import Plan

Pair = tuple[Channel, Channel]


def work(
    cluster: Cluster,
    plan: Plan,
    arrays: dict[str, np.ndarray],
    sampler: Sampler,
    network: Network,
    arena: Arena,
    threads: Threads,
    allocator: Allocator,
    trace: Trace,
) -> Work:
    """Return the computation of this rank's share of a step, with its part of the network bound to memory.

    No rank waits for another here.
    """
    config, grid, n_micro = plan.config, plan.grid, plan.n_micro
    if n_micro == 1 and not config.parallel.is_cut:
        worker, others, max_batch = plan.team.worker, plan.others, sampler.max_batch
        n_kept = any_workers.n_in_step(sampler, worker, network)
        network.bind(arena, max_batch, allocator, config.nn.kernels, threads, n_kept, others=others)
        batches = Batches(plan.facts, arrays, max_batch, plan.recipe, allocator, n_kept)
        return any_workers.work(sampler, cluster, plan.team, network, batches, allocator, others)
    parallel, max_samples = config.parallel, micro(sampler, n_micro)
    n_inputs = most_kept(parallel.schedule, n_micro, grid.n_stages, grid.stage)
    if parallel.convolutions == "data":
        return _hybrid(plan, arrays, sampler, network, arena, threads, allocator, trace)
    crew = _join(network, plan, max_samples, allocator)
    network.bind(
        arena, max_samples, allocator, config.nn.kernels, threads, 1 if parallel.recompute else n_inputs, n_micro > 1
    )
    batches = Batches(plan.facts, arrays, max_samples, plan.recipe, allocator, 0 if grid.stage else n_inputs)
    shapes = [network.shape_before(cut) for cut in plan.cuts]
    pairs = _channels(cluster, grid, parallel.schedule, n_micro, max_samples, shapes, network.dtype, allocator)
    neighbours = pairs.get(grid.stage - 1), pairs.get(grid.stage)
    return Pipeline(
        sampler, network, batches, grid, n_micro, parallel.schedule, parallel.recompute, *neighbours, crew, trace
    )


def _hybrid(
    plan: Plan,
    arrays: dict[str, np.ndarray],
    sampler: Sampler,
    network: Network,
    arena: Arena,
    threads: Threads,
    allocator: Allocator,
    trace: Trace,
) -> Hybrid:
    """Return the computation with convolutions split by samples and dense layers by channels."""
    n_micro, kernels = plan.n_micro, plan.config.nn.kernels
    max_samples, n_shards = micro(sampler, n_micro), plan.grid.n_shards
    begin, network.arena, network.max_batch, network.n_kept = place(network), arena, max_samples, 1
    front, rest = (plan.network(layers, plan.grid.shard) for layers in (slice(0, begin), slice(begin, None)))
    most = max(part.stop - part.start for part in parts_of(network, front))
    crew = _join(rest, plan, max_samples, allocator, most)
    assert crew
    front.bind(arena, -(-max_samples // n_shards), allocator, kernels, threads, 1, n_micro > 1)
    rest.bind(arena, max_samples, allocator, kernels, threads, 1, n_micro > 1)
    batches = Batches(plan.facts, arrays, max_samples, plan.recipe, allocator)
    return Hybrid(sampler, network, batches, plan.grid, n_micro, front, rest, crew, trace)


def _channels(
    cluster: Cluster,
    grid: Grid,
    kind: Kind,
    n_micro: int,
    most: int,
    shapes: Sequence[Shape],
    dtype: str,
    allocator: Allocator,
) -> Mapping[int, Pair]:
    """Return this rank's channels by the stage before each cut: activations forward, gradients back.

    All ranks of a node request all channels inside it, as shared memory is collective.
    """
    nodes = cluster.node_of_rank
    channels: dict[int, Pair] = {}
    for sender in range(cluster.n_ranks - grid.n_shards):
        receiver, stage = sender + grid.n_shards, sender // grid.n_shards % grid.n_stages
        is_end, sends = cluster.rank in (sender, receiver), cluster.rank == sender
        if stage == grid.n_stages - 1:
            continue
        # one slot more than the stage keeps, so that its predecessor need not wait
        depth = most_kept(kind, n_micro, grid.n_stages, stage + 1) + (kind == "1f1b")
        if nodes[sender] == nodes[receiver] == cluster.node:
            pair: Pair = (
                Near(cluster, allocator, sends if is_end else None, depth, most, shapes[stage + 1], dtype),
                Near(cluster, allocator, not sends if is_end else None, 2, most, shapes[stage + 1], dtype),
            )
        elif is_end:
            peer = receiver if sends else sender
            address = (peer, nodes[peer])
            pair = (
                Far(cluster, allocator, address, 2 * stage, depth, most, shapes[stage + 1], dtype),
                Far(cluster, allocator, address, 2 * stage + 1, 2, most, shapes[stage + 1], dtype),
            )
        if is_end:
            channels[stage] = pair
    return channels


def _join(network: Network, plan: Plan, most: int, allocator: Allocator, least: int = 0) -> ShardGroup | None:
    """Set the crew of the split layers, and return it; None without shards.

    Its buffer has room to sum ``least`` elements at once, or more.
    """
    if plan.grid.n_shards == 1:
        return None
    active = network.active[network.own]
    layers = {index: layer for index, (_, layer) in enumerate(active, network.own.start) if isinstance(layer, Split)}
    input_sizes = [most * prod(network.shape_before(index)) for index in layers]
    crew = ShardGroup(plan.grid.crew, allocator, max([least, *input_sizes]), network.dtype)
    for layer in layers.values():
        layer.crew = crew
    return crew


def full_model(
    cluster: Cluster, plan: Plan, network: Network, arena: Arena, n_state: int, allocator: Allocator
) -> FullModel | None:
    """Return the holder of the full network's parameters on rank 0; None if every rank has them."""
    if not plan.config.parallel.is_cut:
        return None
    n_shards = plan.grid.n_shards
    shards = [plan.network(shard=shard) for shard in range(n_shards)] if n_shards > 1 else [network]
    cuts = plan.cuts or [0, len(network.active)]
    parts = [shard_network.stage(slice(*ends)) for ends in pairwise(cuts) for shard_network in shards]
    return FullModel(cluster, plan.grid, network.whole, parts, arena, n_state, allocator)
