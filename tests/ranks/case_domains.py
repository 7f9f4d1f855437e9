"""Gradients that are summed from domain to domain of a node's memory: the same bits, and the bytes that cross."""

import json
from unittest.mock import patch

import numpy as np

from psframe.cluster.gates import PeerLost
from psframe.cluster.joining import join
from psframe.collectives import domains
from psframe.memory.topology import read
from psframe.train.assembly import allocate
from tests.ranks import contract
from tests.ranks.harness import ranks
from tests.ranks.lateness import count_from
from tests.ranks.training import folder, hashes, train

SAMPLES = "dataset={name: synthetic, shape: [1, 28, 28], classes: 10, samples: 48}"
WIDE = (SAMPLES, "model=lenet", "train.epochs=1", "train.batch_size=4", "optimizer.lr=0.002")
N_BYTES = 4 * 431_088  # of LeNet's vector, with what aligns its tensors


def near_node(node):
    """Let this process take its CPUs for those of a NUMA node."""
    return patch.object(allocate, "node_near", lambda site: node)


def collective(**keys):
    return f"collective={json.dumps({'name': 'shared', **keys})}"


@ranks(3, 4, 7, full=True)
def sums_from_domain_to_domain_have_the_same_bits(world):
    """By every kind of reducers and server, and where an optimizer needs whole tensors."""
    ways = [
        (["sync.mode=allreduce"], {"reducers": "all"}),
        (["sync.mode=allreduce"], {"reducers": "server"}),
        (["sync.server=colocated"], {}),
        (["sync.mode=allreduce", "optimizer={name: lars, lr: 0.01}"], {"reducers": "all"}),
        (["sync.mode=allreduce", "train.precision=bf16"], {}),
    ]
    ways += [(["sync.server=dedicated"], {"reducers": "all"})] if world.size > 1 else []
    with folder(world) as where:
        for way, keys in ways:
            plain = hashes(world, world.size, where, *WIDE, *way, collective(domains=1, **keys))
            for n in {2, world.size}:
                found = hashes(world, world.size, where, *WIDE, *way, collective(domains=n, **keys))
                assert found == plain, (way, keys, n)


@ranks(2, 3, 4)
def bytes_that_cross_are_those_computed(world):
    """Of a step, in both orders, where each of the ranks is near a NUMA node of its own or of two."""
    for n_domains in {2, world.size}:
        near = world.rank * n_domains // world.size
        known = [rank * n_domains // world.size for rank in range(world.size)]
        at_once, by_domain = 0, 0
        with folder(world) as where, near_node(near):
            for server, n_workers in (("colocated", world.size), ("dedicated", world.size - 1)):
                keys = {"reducers": "all"}
                ((record,), steps, _) = train(
                    world, world.size, where, *WIDE, f"sync.server={server}", collective(domains=1, **keys)
                )
                at_once = record.get("bytes_remote", 0)
                workers = known[-n_workers:]
                # with reducers everywhere, a worker has as much at home as its domain has reducers
                expected = sum(N_BYTES * sum(d != w for d in known) / world.size for w in workers) * len(steps)
                assert abs(at_once - expected) <= 8192 * n_workers * len(steps), (at_once, expected)
                ((record,), steps, _) = train(
                    world, world.size, where, *WIDE, f"sync.server={server}", collective(domains=n_domains, **keys)
                )
                by_domain = record.get("bytes_remote", 0)
                n_runs = len(set(workers))
                expected = (n_runs - 1) * N_BYTES + N_BYTES * sum(d != known[-1] for d in known) / world.size
                expected *= len(steps)
                assert abs(by_domain - expected) <= 8192 * n_runs * len(steps), (by_domain, expected)


@ranks(4, full=True)
def order_is_chosen_by_the_bytes_that_cross(world):
    """Two domains of two ranks: 1.5 vectors cross in place of 2; of one rank each, 3.75 in place of 3.

    Short vectors are summed at once, and any if what is moved more counts.
    """
    pairs = world.rank // 2
    ways = ((pairs, 0, 0, 1.5), (pairs, 1 << 30, 0, 2.0), (pairs, 0, 2, 2.0), (world.rank, 0, 0, 3.0), (0, 0, 0, 0.0))
    with folder(world) as where:
        for near, least_bytes, moved, n_vectors in ways:
            with near_node(near), patch.multiple(domains, LEAST_BYTES=least_bytes, MOVED=moved):
                ((record,), steps, _) = train(world, 4, where, *WIDE, "sync.mode=allreduce", collective(reducers="all"))
            crossed = record.get("bytes_remote", 0) / len(steps) / N_BYTES
            assert abs(crossed - n_vectors) < 0.02, (near, crossed, n_vectors)


@ranks(4, full=True)
def groups_that_are_no_domains_cross_nothing_and_other_nodes_count_by_node(world):
    with folder(world) as where:
        keys = (*WIDE, "sync.mode=allreduce")
        record = train(world, 4, where, *keys, collective(domains=2))[0][0]
        assert "bytes_remote" not in record
        with near_node(world.rank):  # two nodes in each group: each worker reads its neighbour's half, too
            ((record,), steps, _) = train(world, 4, where, *keys, collective(domains=2, reducers="all"))
        crossed = record["bytes_remote"] / len(steps) / N_BYTES
        # in each group one of two slots; the first group's sum, of which no piece is near; three quarters of the last
        assert abs(crossed - (2 + 1 + 0.75)) < 0.05, crossed


@ranks(4)
def spill_changes_no_order_for_which_memory_was_counted(world):
    """Optimizer state in pages of 2 MiB, of which there are none, leaves one reducer; in plain pages there are four."""
    node = read("/").memory[0]
    declared = (f"placement.hbw_nodes=[{node}]", "placement.spill=[optimizer]")
    keys = (*WIDE, "sync.mode=allreduce", collective(reducers="all"))
    with folder(world) as where, near_node(world.rank // 2), patch.object(domains, "MOVED", 0.1):
        plain = hashes(world, 4, where, *keys)
        assert hashes(world, 4, where, *keys, *declared, "placement.optimizer={name: hbw, huge_pages: 2M}") == plain


@ranks(2)
def domains_are_refused_where_gradients_are_not_summed_in_place(world):
    wrong = (
        ("sync.mode=allreduce", collective(domains=2, chunk_bytes=4096)),
        ("sync.mode=allreduce", collective(domains=2), "train.reproducible=any_workers", "train.global_batch=16"),
        ("sync.mode=allreduce", collective(domains=0)),
    )
    with folder(world) as where:
        for words in wrong:
            train(world, 2, where, *words, expect=2)


@ranks(3, 4)
def rank_that_does_not_add_is_named(world):
    """One announces its gradients and adds none of its pieces, or one; or does not even announce them.

    All others wait for it.
    """
    last = world.size - 1
    for lost, n_added, reducers in ((1, 0, "all"), (last, 1, "server"), (last, None, "server")):
        cluster = join(world)
        form = ("shared", {"reducers": reducers, "domains": world.size})
        arena, collective, *_ = contract.train(cluster, "allreduce", {}, form, "none", [(1 << 14,)])
        version, before = arena.version, arena.params.copy()
        arena.grads[:] = 1
        spoke, left, sums = False, cluster.link.share(64), collective._node._sums
        count_from(cluster.rendezvous, 0.3, lambda left=left: left[0])
        if world.rank == lost:
            if n_added is not None:
                collective._node.put(arena.grads)
                del sums._tasks[n_added:]
                sums.sum()
            left[0] = 1
        else:
            try:
                for _ in collective.allreduce_mean(arena.grads, world.size):
                    raise AssertionError("a segment was summed without a rank's gradients")
            except PeerLost as error:
                spoke = error.speaks
                if spoke:
                    assert error.ranks == (lost,), error.ranks
                    assert f"rank {lost} did not come" in str(error)
        assert world.allreduce(spoke) == 1
        assert arena.version == version
        np.testing.assert_array_equal(arena.params, before)
