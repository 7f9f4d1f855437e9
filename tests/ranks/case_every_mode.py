"""Whole runs in every sync mode: they train, end in one set of parameters, count what they did, and continue."""

import time
from unittest import mock

import numpy as np

from psframe.cluster.joining import join
from psframe.record.clock import CLOCK
from psframe.train.faults import injection
from tests.helpers.suite import IS_FULL
from tests.ranks.every_mode import MODES, SYNCHRONOUS, key, n_workers, uses_store, with_store
from tests.ranks.harness import ranks
from tests.ranks.nodes import own_network
from tests.ranks.training import begun, folder, hashes, one_epoch, train

GENTLE = "optimizer={name: sgd, lr: 0.02, momentum: 0.5}"


@ranks(2, 4, 7, 16, 64, virtual=True)
def modes_train_and_count(world):
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


@ranks(4, virtual=True)
def modes_continue(world):
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


@ranks(4, virtual=True)
def continued_run_may_have_other_ranks_in_every_mode(world):
    """Also one rank alone, which keeps no more than the optimizer's state."""
    for mode in ("sync: {mode: block_momentum, every: 3}", "sync: {mode: easgd, period: 2}", "sync: {mode: async_ps}"):
        for first, then in ((4, 1), (1, 4)):
            with folder(world) as where:
                keys = [key(mode), GENTLE]
                train(world, first, where, *keys, "train.epochs=1", "name=cut")
                records, _, _ = train(world, then, where, *keys, "train.epochs=2", "checkpoint.resume=auto", "name=cut")
                assert [r["n_ranks"] for r in records] == [first, then]


@ranks(4, virtual=True)
def post_local_epochs_are_counted_whatever_ranks_take_them(world):
    """Two ranks take about as many steps in one epoch as four in two."""
    counts = {2: {"0": 10, "1": 8, "2": 8}, 4: {"0": 12, "1": 8, "2": 8}}  # of steps that are not synchronous
    for first, then in ((4, 2), (2, 4)):
        with folder(world) as where:
            keys = ["sync={mode: local_sgd, every: 3, post_local: 2}", "name=cut"]
            train(world, first, where, *keys, "train.epochs=1")
            records, _, _ = train(world, then, where, *keys, "train.epochs=3", "checkpoint.resume=auto")
            assert [record["n_ranks"] for record in records] == [first, then, then]
            synchronous = [{"0": sum(counts[n].values())} for n in (first, then)]
            assert [record["staleness"] for record in records] == [*synchronous, counts[then]], (first, then)


@ranks(4, virtual=True)
def averages_may_be_compressed(world):
    """But not the optimizer's state, which would not stand it."""
    for codec in ("fp16", "topk"):
        for optimizer in (GENTLE, "optimizer={name: adam, lr: 0.002}"):
            with folder(world) as where:
                collective = f"collective={{name: buffer, compression: {codec}}}"
                keys = ["sync={mode: local_sgd, every: 2}", collective, optimizer, "train.epochs=3"]
                records, _, _ = train(world, 4, where, *keys)
                assert records[-1]["loss"] < records[0]["loss"], (codec, optimizer)


@ranks(4, virtual=True)
def synchronous_modes_have_the_same_bits_over_collectives(world):
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


@ranks(4, virtual=True)
def modes_over_two_nodes(world):
    """Network namespaces; a store that only one node could reach is refused by name."""
    for mode in MODES if IS_FULL else [*MODES][::2]:
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


@ranks(2, 4, virtual=True)
def elastic_averaging_moves_an_eighth_of_the_bytes(world):
    """At a period of 16, of what sync_ps moves over ``buffer``, with the same data."""
    with folder(world) as where:
        keys = ["dataset.samples=2000", "train.epochs=1", GENTLE]
        elastic, _, _ = train(world, world.size, where, "sync={mode: easgd, period: 16}", *keys)
        plain, _, _ = train(world, world.size, where, "sync.mode=sync_ps", "collective=buffer", *keys)
        assert elastic[-1]["bytes_moved"] <= plain[-1]["bytes_moved"] / 8


@ranks(3, virtual=True)
def modes_refuse_once_what_they_cannot_do(world):
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
def slow_rank_is_slow_and_changes_no_bit(world):
    with folder(world) as where:
        plain, _, _ = train(world, 3, where)
        slept = []
        with asleep(lambda seconds: slept.append(seconds) or time.sleep(seconds)):
            slow, steps, _ = train(world, 3, where, "fault.slow_rank=1")
        assert [r["params_sha256"] for r in slow] == [r["params_sha256"] for r in plain]
        every = world.allgather(slept)
        assert [len(of_rank) for of_rank in every] == [0, len(steps), 0]
        assert np.sum([r["compute_s"] for r in slow]) >= np.sum(every[1]) / 2  # it is the mean of two workers
        drawn, _, _ = train(world, 3, where, "fault={slow_rank: all, slow_share: 0.5}", "sync.mode=hogwild")
        assert drawn[-1]["loss"] < drawn[0]["loss"]


@ranks(3)
def slow_rank_comes_too_late_beside_a_backup_worker(world):
    """It sleeps until the other one is a step ahead, and that one goes no step ahead until it has begun one."""
    begun, pause = join(world).link.share(24).view(np.int64), injection.Slow.pause

    def paused(slow, step_s):
        begun[world.rank] += 1
        while not begun[1]:
            time.sleep(0.001)
        pause(slow, step_s)

    def sleep(seconds):
        while begun[2] < 2:
            time.sleep(0.001)

    with folder(world) as where, asleep(sleep), mock.patch.object(injection.Slow, "pause", paused):
        keys = ["fault.slow_rank=1", "sync={mode: sync_ps, backup_workers: 1}", "train.epochs=1"]
        served, _, _ = train(world, 3, where, *keys)
        assert served[-1]["dropped"] > 0


def asleep(how):
    """Let slow ranks sleep by ``how(seconds)``."""
    return mock.patch.object(CLOCK, "sleep", how)


@ranks(3, full=True)
def lost_rank_takes_no_step_of_an_unbegun_epoch_along(world):
    for mode in ("sync: {mode: sync_ps}", "sync: {mode: allreduce}", *MODES):
        with folder(world) as where:
            run = begun(world, where, key(mode), GENTLE)
            if run.sync.traits.survives:
                one_epoch(run)
                run.sync.source.begin()
                if world.rank == 0:
                    run.cluster.halt.reopen()
                run.cluster.barrier()
                done = world.bcast(run.sync.source.salvaged() if world.rank == 0 else None)
                assert done == 0, (mode, done)
            run.cluster.barrier()
            run.sync.close()
