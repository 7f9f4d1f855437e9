"""Epochs in parts: pauses for checkpoints in every mode, and all ranks going back to one."""

from unittest import mock

import numpy as np

from psframe.memory.budget import PROCESS
from psframe.train import placement_report
from psframe.train.plan import optimizer_trial
from tests.helpers.suite import IS_FULL
from tests.ranks.every_mode import MODES, SYNCHRONOUS, key, n_workers
from tests.ranks.harness import ranks
from tests.ranks.training import folder, hashes, train

GENTLE = "optimizer={name: sgd, lr: 0.01, momentum: 0.5}"
OFTEN = "checkpoint={every_seconds: 0.001, keep: 100}"
MORE = (1800, 7200, 28800)  # so that rank 0 has a turn while there is something left, on a disk of any speed
STEPPED = ("sync={mode: sync_ps}", "sync={mode: sync_ps, server: colocated}", "sync={mode: allreduce}")


@ranks(1, 4, 7, virtual=True)
def modes_pause_for_checkpoints_and_see_every_sample_once(world):
    for mode, needed in MODES.items():
        if "backup" in mode and n_workers(world, mode) <= needed:
            continue
        for samples in MORE:
            with folder(world) as where:
                keys = [key(mode), GENTLE, OFTEN, "train.epochs=2", f"dataset.samples={samples}"]
                records, steps, run = train(world, world.size, where, *keys)
                files = world.bcast([path.name for path in (run / "checkpoints").iterdir()])
                for epoch in (1, 2):
                    seen = sum(step["n_samples"] for step in steps if step["epoch"] == epoch)
                    assert seen == samples or "backup" in mode, (mode, epoch, seen)
                assert [record["begun_at"] for record in records] == [0, 0]
                numbers = [step["step"] for step in steps]
                assert numbers == sorted(set(numbers)), mode
                world.Barrier()
            if len(files) > 3:  # more than those of epochs
                break
        assert len(files) > 3, (mode, files)


@ranks(3, virtual=True)
def checkpoints_inside_an_epoch_change_no_bit(world):
    for mode in STEPPED:
        for collective in ("shared", "buffer"):
            with folder(world) as where:
                keys = [mode, f"collective={collective}"]
                assert hashes(world, 3, where, *keys, OFTEN) == hashes(world, 3, where, *keys)


@ranks(3, virtual=True)
def fault_by_chance_leaves_no_trace_in_the_bits(world):
    collectives = ("shared", "buffer", "hierarchical")
    for at, mode in enumerate(STEPPED):
        for collective in collectives if IS_FULL else collectives[at : at + 1]:
            with folder(world) as where:
                keys = [mode, f"collective={collective}", "train.epochs=3"]
                whole = hashes(world, 3, where, *keys)
                faults = ["fault={on_nan: rollback, flip: 'gradients:1:15:nan'}"]
                if collective != "buffer":  # of which every rank has a copy, that is repaired
                    faults.append("fault={check_every: 1, flip: 'params:0:15:30'}")
                for fault in faults:
                    records, _, _ = train(world, 3, where, *keys, fault)
                    assert [record["params_sha256"] for record in records] == whole, (mode, collective, fault)
                    assert sum(len(record["went_back"]) for record in records) == 1, (mode, collective, fault)


@ranks(3, virtual=True)
def ranks_without_a_checkpoint_go_back_to_the_beginning(world):
    with folder(world) as where:
        whole = hashes(world, 3, where, "train.epochs=3")
        fault = "fault={on_nan: rollback, flip: 'gradients:2:15:nan'}"
        records, _, run = train(world, 3, where, "train.epochs=3", "checkpoint.every_epochs=0", fault)
        assert [record["params_sha256"] for record in records] == whole
        assert [record["epoch"] for record in records] == [1, 2, 3]
        assert not list((run / "checkpoints").iterdir())


@ranks(3)
def ranks_that_go_back_are_not_judged_as_if_they_began(world):
    """An optimizer of one's own was tried, and a process has what it takes beside its roles."""
    with folder(world) as where:
        keys = ["optimizer={name: 'tests.helpers.own:SignSGD', lr: 0.001}", "train.epochs=3"]
        fault = "fault={on_nan: rollback, flip: 'gradients:1:15:nan'}"
        tries = mock.patch.object(optimizer_trial, "_tried", wraps=optimizer_trial._tried)
        asks = mock.patch.object(placement_report, "check_room", wraps=placement_report.check_room)
        with tries as tried, asks as asked:
            records, _, _ = train(world, 3, where, *keys, fault)
        assert sum(len(record["went_back"]) for record in records) == 1
        assert tried.call_count == 1 + len(optimizer_trial.CUTS)
        assert [PROCESS in sizes for (_, sizes), _ in asked.call_args_list] == [True, False]


@ranks(3, virtual=True)
def fault_that_comes_again_ends_the_run(world):
    with folder(world) as where:
        train(world, 3, where, "fault.on_nan=rollback", "optimizer.lr=1e30", expect=2)


@ranks(4, virtual=True)
def pause_of_modes_that_average_is_one_of_their_averages(world):
    """So what is trained stays near what is trained without."""
    for mode in SYNCHRONOUS:
        with folder(world) as where:
            paused, _, _ = train(world, 4, where, key(mode), GENTLE, OFTEN, "train.epochs=3")
            whole, _, _ = train(world, 4, where, key(mode), GENTLE, "train.epochs=3")
            assert np.isclose(paused[-1]["loss"], whole[-1]["loss"], rtol=0.5), mode
