"""Augmented samples and soft targets are those of one process, whoever takes the steps and however they are cut."""

import contextlib
import io
import json

import numpy as np

from tests.helpers.suite import IS_FULL
from tests.ranks.every_collective import COLLECTIVES
from tests.ranks.harness import ranks
from tests.ranks.torch_models import ROW, SHORT, need_torch
from tests.ranks.training import folder, hashes, train

ALL = ("augment={crop: 2, flip: both, cutout: 3, mixup: 0.4}", "train.label_smoothing=0.1")
ANY = ("train.reproducible=any_workers", "train.global_batch=24", "train.epochs=2")
#: modes whose workers take shares of their own at times of their own
OTHERS = (
    "{mode: sync_ps, backup_workers: 1}",
    "{mode: async_ps}",
    "{mode: easgd}",
    "{mode: hogwild}",
    "{mode: local_sgd}",
)


def key(parallel):
    return "parallel=" + json.dumps(parallel)


@ranks(6, virtual=True)
def workers_of_any_number_augment_alike(world):
    """One to five workers, under a dedicated server and without one, over each collective."""
    with folder(world) as where:
        plain = hashes(world, 1, where, *ANY)
        alone = hashes(world, 1, where, *ANY, *ALL)
        assert len({*plain, *alone}) == 4, "an augmentation that changes nothing tests nothing"
        for workers in range(2, 6):
            for at, mode in enumerate(("allreduce", "sync_ps")):
                every = COLLECTIVES if IS_FULL else [COLLECTIVES[(workers + 2 * at) % len(COLLECTIVES)]]
                for collective in every:
                    how = [f"sync={mode}", f"collective={collective}"]
                    found = hashes(world, workers + (mode == "sync_ps"), where, *ANY, *ALL, *how)
                    assert found == alone, (workers, *how)


@ranks(2, 3, virtual=True)
def each_augmentation_and_smoothing_change_the_run_and_not_with_the_workers(world):
    with folder(world) as where:
        keys = [*ANY, "train.epochs=1"]
        every = ["augment.crop=2", "augment.flip=vertical", "augment.cutout=3", "augment.mixup=0.4", ALL[1]]
        found = [hashes(world, 1, where, *keys, *more) for more in ([], *([one] for one in every))]
        assert len({hash_ for (hash_,) in found}) == len(found)
        for one, wanted in zip(every, found[1:], strict=True):
            assert hashes(world, world.size, where, *keys, one, "sync=allreduce") == wanted, one


@ranks(3, virtual=True)
def sequences_and_bfloat16_are_augmented_alike(world):
    keys = [*ANY, "train.label_smoothing=0.1", "sync=allreduce"]
    sequences = ["dataset.shape=[2, 60]", "model=tests.helpers.tiny:mixed", "augment={crop: 5, cutout: 9, mixup: 0.4}"]
    with folder(world) as where:
        for more in (sequences, [ALL[0], "train.precision=bf16"]):
            alone, three = (hashes(world, n, where, *keys, *more) for n in (1, 3))
            assert three == alone
            assert hashes(world, 1, where, *keys, *more, "augment.mixup=0") != alone


@ranks(3, full=True)
def stages_draw_the_same_samples_and_labels(world):
    """The first stage mixes samples, the last one their labels; micro-batches cut a batch, and shards a micro-batch."""
    keys = [*ALL, "sync=allreduce"]
    with folder(world) as where:
        whole, steps, _ = train(world, 1, where, *keys, key({"micro_batches": 4}))
        for schedule in ("1f1b", "gpipe"):
            cut = {"micro_batches": 4, "pipeline": 3, "schedule": schedule, "recompute": schedule == "gpipe"}
            records, its_steps, _ = train(world, 3, where, *keys, key(cut))
            assert [r["params_sha256"] for r in records] == [r["params_sha256"] for r in whole]
            assert [s["loss"] for s in its_steps] == [s["loss"] for s in steps]
        for convolutions in ("model", "data"):
            cut = {"micro_batches": 4, "model": 2, "convolutions": convolutions}
            records, _, _ = train(world, 2, where, *keys, key(cut))
            assert np.allclose([r["loss"] for r in records], [r["loss"] for r in whole], rtol=1e-4)


@ranks(4, virtual=True)
def every_mode_trains_on_augmented_samples(world):
    with folder(world) as where:
        for mode in OTHERS:
            records, _, _ = train(world, 4, where, *ALL, f"sync={mode}")
            assert all(np.isfinite(record["loss"]) and record["loss"] > 0 for record in records), mode


@ranks(1, 2, virtual=True)
def samples_that_test_are_not_augmented_and_their_loss_is_plain(world):
    """At a learning rate that moves nothing the test set is told the same, and the training loss another one."""
    keys = ["sync=allreduce", "optimizer={name: sgd, lr: 1.0e-30}", "train.epochs=1"]
    with folder(world) as where:
        (plain,), _, _ = train(world, world.size, where, *keys)
        (found,), _, _ = train(world, world.size, where, *keys, *ALL)
        assert (found["test_loss"], found["accuracy"]) == (plain["test_loss"], plain["accuracy"])
        assert found["loss"] != plain["loss"]


@ranks(2, 4)
def continued_run_augments_as_if_it_had_never_stopped(world):
    keys = [*ANY, *ALL, "sync=allreduce", "checkpoint.resume=auto"]
    with folder(world) as where:
        whole = hashes(world, 1, where, *keys, "name=whole", "train.epochs=3")
        for epochs, n in ((1, world.size), (2, 1), (3, 2)):
            records, _, run = train(world, n, where, *keys, "name=cut", f"train.epochs={epochs}")
        assert [record["params_sha256"] for record in records] == whole
        for other in ("augment.crop=1", "train.label_smoothing=0.2"):
            more, said = ["name=cut", "train.epochs=4", f"checkpoint.resume={run}", other], io.StringIO()
            with contextlib.redirect_stderr(said):
                train(world, 1, where, *keys, *more, expect=2)
            assert f"got other values of {other.partition('=')[0]} than" in world.bcast(said.getvalue())


@ranks(4, full=True)  # as other cases of PyTorch, which each job imports once
def module_of_pytorch_is_trained_on_soft_targets(world):
    need_torch()
    with folder(world) as where:
        keys = [ROW, *SHORT, *ANY, *ALL]
        assert hashes(world, 2, where, *keys, "sync=allreduce") == hashes(world, 1, where, *keys)
