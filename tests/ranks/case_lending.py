"""Shares by speed with ``any_workers``: workers compute blocks of others, and no bit changes."""

from unittest import mock

from psframe.sync.balance import Balance
from tests.ranks.case_any_workers import KEYS, SERVERS, seen
from tests.ranks.case_balance import noted
from tests.ranks.every_collective import COLLECTIVES
from tests.ranks.harness import ranks
from tests.ranks.nodes import own_network
from tests.ranks.training import begun, folder, in_each_process, one_epoch, train

MORE = ("train.blocks=16", "train.global_batch=32", "dataset.samples=1003")


def balanced(mode, server):
    return f"sync={{mode: {mode}, server: {server}, balance: speed}}"


@ranks(2, 3, 4, 7, virtual=True)
def lent_blocks_change_no_bit(world):
    """Neither of parameters nor of losses, also in a last step with fewer samples than blocks."""
    with folder(world) as where, in_each_process(world, mock.patch.object(Balance, "note", noted)):
        alone = seen(world, 1, where, *KEYS, *MORE)
        for at, (mode, server) in enumerate(SERVERS):
            how = [balanced(mode, server), f"collective={COLLECTIVES[at % len(COLLECTIVES)]}"]
            records, steps, _ = train(world, world.size, where, *KEYS, *MORE, *how)
            n_workers = world.size - (mode == "sync_ps" and server == "dedicated")
            assert [r["params_sha256"] for r in records] == [epoch[0] for epoch in alone[0]], how
            assert [(s["loss"], s["n_samples"]) for s in steps] == [step[:2] for step in alone[1]], how
            if n_workers > 1:
                shares = records[-1]["shares"]
                assert sum(shares) == 32
                assert shares[0] > 32 / n_workers > shares[-1], "who is slower had as many as others"


@ranks(3, 4, 7, virtual=True)
def blocks_are_lent_to_other_nodes(world):
    with folder(world) as where, in_each_process(world, mock.patch.object(Balance, "note", noted)):
        alone = seen(world, 1, where, *KEYS, *MORE)
        for mode, server in SERVERS:
            with own_network(world, world.rank % 2):
                keys = [*KEYS, *MORE, balanced(mode, server), "collective=hierarchical"]
                assert seen(world, world.size, where, *keys) == alone, keys


@ranks(3, 4, full=True)
def large_rows_reach_other_nodes(world):
    """Too large for MPI to send them before they are asked for, from ranks that the exchange keeps out of MPI."""
    deep = "model={name: 'tests.helpers.tiny:deep', layers: 2, width: 64}"
    keys = [KEYS[0], deep, *MORE[:2], "dataset.samples=600", "sync={mode: allreduce, balance: speed}"]
    with folder(world) as where, in_each_process(world, mock.patch.object(Balance, "note", noted)):
        with own_network(world, world.rank % 2):
            run = begun(world, where, *keys, "collective=hierarchical")
            one_epoch(run)
        assert len(run.network.arena.grads) > 50_000
        assert world.allreduce(sum(traffic.sent for traffic in run.work.traffics())) > 0, "nobody helped another node"
        lent = run.network.arena.params.copy()
        run = begun(world, where, *keys[:-1], "sync.mode=allreduce")
        one_epoch(run)
        assert (run.network.arena.params == lent).all()


@ranks(3, virtual=True)
def uneven_nodes_are_made_even(world):
    """Three workers of four blocks each have one, one and two of them at first, and so go at the pace of two."""

    def alike(balance, n_samples, _):
        balance.seconds.append(1.0)

    with folder(world) as where, in_each_process(world, mock.patch.object(Balance, "note", alike)):
        run = begun(world, where, *KEYS[:1], "train.blocks=16", "train.global_batch=48", "dataset.samples=2003",
                    "sync={mode: allreduce, balance: speed}")  # fmt: skip
        assert run.sampler.even == [4, 4, 8]
        one_epoch(run)
        assert sorted(run.sampler.sizes) == [5, 5, 6]
        assert sum(run.balance.shares) == 48


@ranks(4, virtual=True)
def repaired_parameters_are_used_in_all_blocks(world):
    """Of a rank with a flipped bit others have had sums: all compute anew."""
    keys = [*KEYS, *MORE, "fault.check_every=1"]
    with folder(world) as where, in_each_process(world, mock.patch.object(Balance, "note", noted)):
        alone = seen(world, 1, where, *KEYS, *MORE)
        how = ["sync={mode: allreduce, balance: speed}", "collective=buffer"]
        flip = "fault.flip=params:0:40:27"
        records, _, _ = train(world, world.size, where, *keys, *how, flip)
        assert [repair for record in records for repair in record["repaired"]] == [{"rank": 0, "step": 41}]
        assert [r["params_sha256"] for r in records] == [epoch[0] for epoch in alone[0]]
