"""Whole runs: the same bits, the same loss curve, and runs that are stopped and continued."""

import contextlib
import io

import numpy as np

from tests.helpers.launcher import go_back
from tests.ranks.harness import ranks
from tests.ranks.nodes import own_network
from tests.ranks.training import folder, hashes, train

SERVERS = (("sync_ps", "dedicated"), ("sync_ps", "colocated"), ("allreduce", "dedicated"))
DROPOUT = "model={name: 'tests.helpers.tiny:build', dropout: 0.3}"


def _ranks_for(workers, mode, server):
    return workers + (mode == "sync_ps" and server == "dedicated")


@ranks(4, virtual=True)
def workers_that_are_the_same_have_the_same_bits(world):
    """Also where a step's last batches are uneven or empty, and layers draw random numbers."""
    for workers in (2, 3):
        with folder(world) as where:
            found = {}
            for mode, server in SERVERS:
                for collective in ("buffer", "object"):
                    keys = [f"sync.mode={mode}", f"sync.server={server}", f"collective={collective}", DROPOUT]
                    n_ranks = _ranks_for(workers, mode, server)
                    found[mode, server, collective] = hashes(world, n_ranks, where, *keys, "dataset.limit=101")
            assert len({tuple(h) for h in found.values()}) == 1, found
            assert len(set(next(iter(found.values())))) == 2, "training changed nothing"


@ranks(4, virtual=True)
def worker_alone_has_the_bits_of_no_exchange(world):
    with folder(world) as where:
        alone = hashes(world, 1, where)
        assert alone == hashes(world, 2, where, "sync.server=dedicated")
        assert alone == hashes(world, 1, where, "sync.mode=allreduce", "collective=object")


@ranks(4, virtual=True)
def loss_curve_is_that_of_one_process(world):
    """The same global batch at 1, 2 and 4 workers, in every mode: 20 steps within 1e-4."""
    with folder(world) as where:
        curves = {}
        for workers in (1, 2, 4):
            for mode, server in SERVERS:
                n_ranks = _ranks_for(workers, mode, server)
                if n_ranks <= world.size:
                    keys = [f"train.batch_size={32 // workers}", f"sync.mode={mode}", f"sync.server={server}"]
                    _, steps, _ = train(world, n_ranks, where, *keys, "train.epochs=3", DROPOUT)
                    curves[workers, mode, server] = [step["loss"] for step in steps[:20]]
        reference = curves.pop((1, "allreduce", "dedicated"))
        assert len(reference) == 20
        for curve in curves.values():
            np.testing.assert_allclose(curve, reference, rtol=1e-4)


@ranks(1, 3)
def optimizer_that_looks_beside_a_number_is_told_before_there_is_a_folder(world):
    with folder(world) as where:
        for more in ((), ("--dry-run",)):
            said = io.StringIO()
            with contextlib.redirect_stderr(said):
                keys = ("optimizer={name: 'tests.helpers.own:ByNorm', lr: 0.01}", *more)
                train(world, world.size, where, *keys, expect=2)
            every = world.allgather(said.getvalue())
            assert "must change each number by its own gradient and state alone" in every[0], every
            assert not any(every[1:]), every
            assert not (where / "runs").exists()


@ranks(1, 3)
def continued_runs_end_in_the_same_bits(world):
    for mode, optimizer in (("sync_ps", "sgd"), ("allreduce", "adam"), ("sync_ps", "adam")):
        keys = [f"sync.mode={mode}", f"optimizer={{name: {optimizer}, lr: 0.01}}", DROPOUT, "checkpoint.every_epochs=2"]
        with folder(world) as where:
            whole = hashes(world, world.size, where, *keys, "train.epochs=5")
            first, _, run = train(world, world.size, where, *keys, "train.epochs=2", "name=cut")
            rest, steps, same = train(
                world, world.size, where, *keys, "train.epochs=5", "name=cut", "checkpoint.resume=auto"
            )
            assert same == run
            assert [r["epoch"] for r in rest] == [1, 2, 3, 4, 5]
            assert [r["params_sha256"] for r in rest] == whole
            assert rest[:2] == first, "a continued run rewrote what was done"
            assert [s["step"] for s in steps] == list(range(1, len(steps) + 1))


@ranks(3, virtual=True)
def lines_after_the_checkpoint_are_cut(world):
    with folder(world) as where:
        keys = ["train.epochs=3", "checkpoint.every_epochs=2", "name=cut"]
        records, _, run = train(world, 3, where, *keys)
        if world.rank == 0:  # as if the run had been killed in epoch 4, after the record of epoch 3
            go_back(run, 2)
            with open(run / "metrics.jsonl", "a") as out:
                out.write('{"epoch": 4, "loss": 1.')
        again, _, same = train(world, 3, where, *keys, f"checkpoint.resume={run}")
        assert same == run
        assert [r["params_sha256"] for r in again] == [r["params_sha256"] for r in records]


@ranks(3, virtual=True)
def continued_run_may_have_other_ranks(world):
    with folder(world) as where:
        _, _, run = train(world, 3, where, "train.epochs=1")
        records, _, same = train(world, 2, where, "train.epochs=3", f"checkpoint.resume={run}")
        assert same == run
        assert [r["n_ranks"] for r in records] == [3, 2, 2]


@ranks(1, 2, 3, 4, 7)
def records_are_whole_and_consistent(world):
    for mode, server in SERVERS:
        with folder(world) as where:
            records, steps, run = train(world, world.size, where, f"sync.mode={mode}", f"sync.server={server}")
            record = records[-1]
            n_workers = world.size - (mode == "sync_ps" and server == "dedicated" and world.size > 1)
            assert record["n_ranks"] == world.size
            assert record["n_workers"] == n_workers
            assert record["global_batch"] == 8 * n_workers
            assert record["sync_mode"] == (mode if world.size > 1 else "alone")
            assert record["bytes_sent"] == 0  # in shared memory
            assert record["bytes_moved"] == record["bytes_read"] + record["bytes_written"] > 0
            assert sum(s["n_samples"] for s in steps if s["epoch"] == 2) == 203
            phases = [record[f"{p}_s"] for p in ("data", "compute", "exchange", "update", "wait")]
            assert min(phases) >= 0 < max(phases)
            assert np.isclose(record["samples_per_s"], 203 / record["epoch_s"])
            weighed = sum(s["loss"] * s["n_samples"] for s in steps if s["epoch"] == 2) / 203
            assert np.isclose(record["loss"], weighed)
            assert sorted(p.name for p in (run / "checkpoints").iterdir()) == [
                *(f"epoch-{done:05d}-step-{done * len(steps) // 2:010d}.h5" for done in (1, 2)), "latest",
            ]  # fmt: skip


@ranks(4, virtual=True)
def workers_more_than_batches(world):
    """Three workers, four samples: shares of one or two, and a global batch larger than the data."""
    with folder(world) as where:
        records, steps, _ = train(world, 4, where, "dataset.limit=4")
        assert [s["n_samples"] for s in steps] == [4, 4]
        assert records[-1]["loss"] < records[0]["loss"]


@ranks(4, virtual=True)
def nodes_train_like_one(world):
    """Two network namespaces are two nodes to psframe: data are read on each, workers are numbered node by node."""
    with folder(world) as where:
        for mode, server in SERVERS:
            keys = [f"sync.mode={mode}", f"sync.server={server}", DROPOUT]
            one = hashes(world, 4, where, *keys)
            with own_network(world, world.rank % 2):
                records, _, _ = train(world, 4, where, *keys)
            assert records[-1]["n_nodes"] == 2
            assert [r["params_sha256"] for r in records] == one
            assert all(r["wait_s"] >= 0 for r in records)


@ranks(2, 3, virtual=True)
def own_mode_and_optimizer(world):
    with folder(world) as where:
        keys = [
            "sync={mode: 'tests.helpers.own:Lazy', every: 2}",
            "optimizer={name: 'tests.helpers.own:SignSGD', lr: 0.01}",
        ]
        records, steps, _ = train(world, world.size, where, *keys, "train.epochs=4")
        assert records[-1]["sync_mode"] == "tests.helpers.own:Lazy"
        assert steps[-1]["loss"] < steps[0]["loss"]


@ranks(2, virtual=True)
def dropout_and_shuffle_follow_the_seed(world):
    with folder(world) as where:
        first = hashes(world, 2, where, DROPOUT)
        assert hashes(world, 2, where, DROPOUT) == first
        assert hashes(world, 2, where, DROPOUT, "train.seed=4")[0] != first[0]


@ranks(2, virtual=True)
def config_of_a_run_runs_again(world):
    with folder(world) as where:
        records, _, run = train(world, 2, where)
        again, _, _ = train(world, 2, where, config=(run / "config.yaml").read_text())
        assert [r["params_sha256"] for r in again] == [r["params_sha256"] for r in records]
        assert "psframe" in (run / "config.yaml").read_text()


@ranks(2, 3, virtual=True)
def bytes_of_an_epoch_are_those_that_an_own_collective_counts(world):
    """Epoch by epoch; one that counts none is told to have sent none."""
    for (mode, server), counts in [*((way, True) for way in SERVERS), (SERVERS[-1], False)]:
        own = f"collective={{name: 'tests.helpers.own:Told', counts: {str(counts).lower()}}}"
        with folder(world) as where:
            keys = [f"sync.mode={mode}", f"sync.server={server}", own, "train.reproducible=none"]
            records, steps, _ = train(world, world.size, where, *keys)
        sent = 1000 * world.size * len(steps) / len(records) if counts else 0
        assert [record["bytes_sent"] for record in records] == [sent] * len(records), (mode, server, sent)
        assert all(record["bytes_read"] >= sent for record in records)
