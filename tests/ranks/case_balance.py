"""Shares by speed over ranks: all cut a step alike, every sample counts once, and the mean stays that of the batch."""

from unittest import mock

import numpy as np

from psframe.sync.balance import WINDOW, Balance, proportional
from psframe.sync.sampler import MOST
from tests.ranks.harness import ranks
from tests.ranks.training import begun, folder, in_each_process, one_epoch, train

STEPS = 2 * WINDOW + 2
MODES = (
    "allreduce",
    "{mode: sync_ps, server: colocated, servers: 2}",
    "{mode: sync_ps, server: dedicated}",
    "{mode: sync_ps, server: colocated}",
)
SPREAD = 5  # times as long as the first worker takes the last one for a sample


def speeds_of(n_workers):
    return [1 / (1 + (SPREAD - 1) * worker / max(1, n_workers - 1)) for worker in range(n_workers)]


def noted(balance, n_samples, _):
    """Note what a sample would take on this worker, by no clock."""
    if n_samples:
        balance.seconds.append(1 / speeds_of(balance.sampler.n_workers)[balance.worker])


def shapes(mode, n_workers):
    """Return the keys of a run of some steps, of eight samples a worker, of which the last step has fewer."""
    n_samples = STEPS * 8 * n_workers - 3
    spec = mode if mode.startswith("{") else f"{{mode: {mode}}}"
    return [f"dataset.samples={n_samples}", f"sync={spec[:-1]}, balance: speed}}", "optimizer={name: sgd, lr: 0.01}"]


@ranks(2, 3, 4, 7, virtual=True)
def shares_follow_the_speed_and_leave_the_mean_as_it_is(world):
    for mode in MODES:
        ends = []
        for balanced in (True, False):
            note = mock.patch.object(Balance, "note", noted if balanced else lambda *_: None)
            with folder(world) as where, in_each_process(world, note):
                n_workers = world.size - ("dedicated" in mode)
                run = begun(world, where, *shapes(mode, n_workers))
                n_batch = 8 * n_workers
                even = n_workers == 1 or list(run.sampler.sizes) == [8] * n_workers
                assert world.allreduce(int(even)) == world.size
                one_epoch(run)
                ends.append(world.bcast(run.network.arena.params.copy()))
                if n_workers > 1:
                    wanted = proportional(n_batch, speeds_of(n_workers), MOST * 8) if balanced else [8] * n_workers
                    sizes = world.allgather(run.sampler.sizes)
                    assert sizes == [wanted] * world.size, (mode, sizes)
        np.testing.assert_allclose(ends[0], ends[1], rtol=1e-4, atol=1e-6, err_msg=mode)


@ranks(3, 4, virtual=True)
def every_sample_is_used_once_and_the_record_shows_the_shares(world):
    for mode in MODES:
        n_workers = world.size - ("dedicated" in mode)
        with folder(world) as where, in_each_process(world, mock.patch.object(Balance, "note", noted)):
            keys = shapes(mode, n_workers)
            records, steps, _ = train(world, world.size, where, *keys, "train.epochs=2")
            n_samples = int(keys[0].rpartition("=")[2])
            for epoch in (1, 2):
                assert sum(step["n_samples"] for step in steps if step["epoch"] == epoch) == n_samples
            assert records[-1]["samples_used"] == n_samples
            assert records[-1]["shares"] == proportional(8 * n_workers, speeds_of(n_workers), MOST * 8)
            assert records[-1]["loss"] < records[0]["loss"]


@ranks(4, virtual=True)
def shares_begin_anew_where_a_run_goes_on(world):
    with folder(world) as where, in_each_process(world, mock.patch.object(Balance, "note", noted)):
        keys = [*shapes("allreduce", world.size), "name=cut"]
        train(world, world.size, where, *keys, "train.epochs=1")
        records, _, _ = train(world, world.size, where, *keys, "train.epochs=2", "checkpoint.resume=auto")
        assert [record["epoch"] for record in records] == [1, 2]
        assert records[0]["shares"] == records[1]["shares"]
