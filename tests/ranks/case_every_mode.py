"""Whole runs in every sync mode: they train, end in one set of parameters, count what they did, and continue."""

import numpy as np

from tests.ranks.case_cluster import own_network
from tests.ranks.case_guard import begun, one_epoch
from tests.ranks.harness import ranks
from tests.ranks.training import folder, hashes, train

#: each in the forms that differ in code, by how many workers it needs
MODES = {
    "sync: {mode: sync_ps, backup_workers: 1}": 2,
    "sync: {mode: async_ps}": 1,
    "sync: {mode: async_ps, pull_every: 3, push_every: 2}": 1,
    "sync: {mode: async_ps, staleness: 0}": 1,
    "sync: {mode: async_ps, staleness: 2}": 1,
    "sync: {mode: async_ps, compensate: true}": 1,
    "sync: {mode: easgd, period: 4}": 1,
    "sync: {mode: easgd, period: 4, synchronous: true}": 1,
    "sync: {mode: hogwild}": 1,
    "sync: {mode: dogwild}": 1,
    "sync: {mode: local_sgd, every: 3, post_local: 1}": 1,
    "sync: {mode: block_momentum, every: 3, nesterov: true}": 1,
    "sync: {mode: hybrid, period: 2}": 1,
}
#: the same bits in every run
SYNCHRONOUS = [
    mode for mode in MODES if any(word in mode for word in ("local", "block", "synchronous", "staleness: 0"))
]
GENTLE = "optimizer={name: sgd, lr: 0.02, momentum: 0.5}"


def key(mode):
    return mode.replace("sync: ", "sync=", 1)


def with_store(mode, store):
    return key(mode).replace("}", f", store: {store}}}")


def uses_store(mode):
    return not any(word in mode for word in ("synchronous", "hogwild", "local", "block"))


def n_workers(world, mode):
    return world.size - any(word in mode for word in ("sync_ps", "async_ps"))


@ranks(2, 4, 7, 16, 64)
def every_mode_trains_and_counts(world):
    # some steps for each rank; and what takes every gradient by itself takes as many as there are ranks, or twice that
    n_samples, lr = max(203, 19 * world.size), min(0.02, 0.04 / world.size)
    for mode, needed in MODES.items():
        if n_workers(world, mode) < needed + 1 and "backup" in mode:
            continue
        forms = [key(mode)] if not uses_store(mode) else [with_store(mode, store) for store in ("shared", "window")]
        for form in forms:
            with folder(world) as where:
                keys = [f"dataset.samples={n_samples}", f"optimizer={{name: sgd, lr: {lr}, momentum: 0.5}}"]
                records, steps, run = train(world, world.size, where, form, *keys, "train.epochs=3")
                check(mode, records, steps, run, n_samples)  # on every rank, or those that go on would wait for rank 0


def check(mode, records, steps, run, n_samples):
    first, last = records[0], records[-1]
    assert last["loss"] < first["loss"], f"{mode}: {first['loss']} -> {last['loss']}"
    seen = sum(s["n_samples"] for s in steps if s["epoch"] == 3)
    assert seen == n_samples or ("backup" in mode and 0 < seen <= n_samples), f"{mode}: {seen} samples"
    assert last["samples_used"] == n_samples or ("backup" in mode and 0 < last["samples_used"] < n_samples)
    assert np.isclose(last["samples_per_s"], last["samples_used"] / last["epoch_s"])
    assert last["pulls"] > 0
    assert last["pushes"] > 0
    assert sum(last["staleness"].values()) > 0
    assert 0 <= last["staleness_p50"] <= last["staleness_p99"]
    assert last["dropped"] == 0 or "backup" in mode
    assert last["wait_s"] >= 0
    assert last["exchange_s"] >= 0
    assert last["bytes_moved"] > 0
    assert sorted(p.name for p in (run / "checkpoints").iterdir())[-1] == "latest"


@ranks(4)
def every_mode_continues(world):
    for mode in MODES:
        with folder(world) as where:
            keys = [key(mode), GENTLE]
            train(world, 4, where, *keys, "train.epochs=1", "name=cut")
            records, _, _ = train(world, 4, where, *keys, "train.epochs=3", "name=cut", "checkpoint.resume=auto")
            assert [r["epoch"] for r in records] == [1, 2, 3], mode
            assert records[-1]["loss"] < records[0]["loss"], mode
            if mode in SYNCHRONOUS:
                whole = hashes(world, 4, where, *keys, "train.epochs=3")
                assert [r["params_sha256"] for r in records] == whole, mode


@ranks(4)
def a_continued_run_may_have_other_ranks_in_every_mode(world):
    """Also one rank alone, which keeps no more than the optimizer's state."""
    for mode in ("sync: {mode: block_momentum, every: 3}", "sync: {mode: easgd, period: 2}", "sync: {mode: async_ps}"):
        for first, then in ((4, 1), (1, 4)):
            with folder(world) as where:
                keys = [key(mode), GENTLE]
                train(world, first, where, *keys, "train.epochs=1", "name=cut")
                records, _, _ = train(world, then, where, *keys, "train.epochs=2", "checkpoint.resume=auto", "name=cut")
                assert [r["n_ranks"] for r in records] == [first, then]


@ranks(4)
def averages_may_be_compressed(world):
    """But not the optimizer's state, which would not stand it."""
    for codec in ("fp16", "topk"):
        for optimizer in (GENTLE, "optimizer={name: adam, lr: 0.002}"):
            with folder(world) as where:
                collective = f"collective={{name: buffer, compression: {codec}}}"
                keys = ["sync={mode: local_sgd, every: 2}", collective, optimizer, "train.epochs=3"]
                records, _, _ = train(world, 4, where, *keys)
                assert records[-1]["loss"] < records[0]["loss"], (codec, optimizer)


@ranks(4)
def synchronous_ones_have_the_same_bits_over_every_collective(world):
    for mode in SYNCHRONOUS:
        with folder(world) as where:
            ends = {
                tuple(hashes(world, 4, where, key(mode), GENTLE, f"collective={collective}"))
                for collective in ("shared", "buffer", "object", "hierarchical")
            }
            assert len(ends) == 1, mode
    with folder(world) as where:
        bounded = hashes(world, 4, where, "sync={mode: async_ps, staleness: 0}")
        assert bounded == hashes(world, 4, where, "sync.mode=sync_ps")


@ranks(4)
def modes_over_two_nodes(world):
    """Network namespaces; a store that only one node could reach is refused by name."""
    for mode in MODES:
        with folder(world) as where, own_network(world, world.rank % 2):
            if "hogwild" in mode:
                train(world, 4, where, key(mode), expect=2)
                continue
            records, _, _ = train(world, 4, where, key(mode), GENTLE, "train.epochs=2")
            assert records[-1]["n_nodes"] == 2
            assert records[-1]["loss"] < records[0]["loss"], mode
            if uses_store(mode):
                assert records[-1]["store"] == "window"
                train(world, 4, where, with_store(mode, "shared"), expect=2)


@ranks(2, 4)
def elastic_averaging_moves_an_eighth_of_the_bytes(world):
    """At a period of 16, of what sync_ps moves over ``buffer``, with the same data."""
    with folder(world) as where:
        keys = ["dataset.samples=2000", "train.epochs=1", GENTLE]
        elastic, _, _ = train(world, world.size, where, "sync={mode: easgd, period: 16}", *keys)
        plain, _, _ = train(world, world.size, where, "sync.mode=sync_ps", "collective=buffer", *keys)
        assert elastic[-1]["bytes_moved"] <= plain[-1]["bytes_moved"] / 8


@ranks(3)
def what_a_mode_cannot_do_is_refused_once(world):
    with folder(world) as where:
        for wrong in (
            "sync={mode: sync_ps, backup_workers: 2}",
            "sync={mode: sync_ps, backup_workers: 1, server: colocated}",
            "sync={mode: async_ps, staleness: 1, pull_every: 2}",
            "sync={mode: async_ps, compensate: true, push_every: 2}",
            "sync={mode: easgd, store: nowhere}",
            "sync={mode: easgd, period: 0}",
            "sync={mode: easgd, beta: 50}",
            "sync={mode: hybrid, group_size: 0}",
            "fault.slow_rank=0",
            "fault.slow_rank=3",
        ):
            train(world, 3, where, wrong, expect=2)


@ranks(3)
def a_slow_rank_is_slow_and_changes_no_bit(world):
    with folder(world) as where:
        plain, _, _ = train(world, 3, where)
        slow, _, _ = train(world, 3, where, "fault.slow_rank=1")
        assert [r["params_sha256"] for r in slow] == [r["params_sha256"] for r in plain]
        assert np.sum([r["compute_s"] for r in slow]) > 1.5 * np.sum([r["compute_s"] for r in plain])
        served, _, _ = train(world, 3, where, "fault.slow_rank=1", "sync={mode: sync_ps, backup_workers: 1}")
        assert served[-1]["dropped"] > 0
        drawn, _, _ = train(world, 3, where, "fault={slow_rank: all, slow_share: 0.5}", "sync.mode=hogwild")
        assert drawn[-1]["loss"] < drawn[0]["loss"]


@ranks(3)
def a_rank_that_is_lost_before_the_first_step_of_an_epoch_takes_no_step_of_it_along(world):
    for mode in ("sync: {mode: sync_ps}", "sync: {mode: allreduce}", *MODES):
        with folder(world) as where:
            run = begun(world, where, key(mode), GENTLE)
            if run.sync.survives:
                one_epoch(run)
                run.sync.begin()
                if world.rank == 0:
                    run.cluster.halt.reopen()
                run.cluster.barrier()
                done = world.bcast(run.sync.salvaged()[0] if world.rank == 0 else None)
                assert done == 0, (mode, done)
            run.cluster.barrier()
            run.sync.close()
