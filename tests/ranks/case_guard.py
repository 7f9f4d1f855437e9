"""Gradients that are not finite, and bits that turn over in memory: dropped, named, repaired; on every rank alike."""

from unittest.mock import patch

import numpy as np

from psframe.cluster.cluster import AgreedError
from psframe.train.faults import guard
from psframe.train.faults.injection import Rollback
from tests.ranks.every_collective import COLLECTIVES
from tests.ranks.harness import ranks
from tests.ranks.nodes import own_network
from tests.ranks.training import begun, folder, hashes, in_each_process, one_epoch, train

SERVERS = (("sync_ps", "dedicated"), ("sync_ps", "colocated"), ("allreduce", "colocated"))
INEXACT = ("{name: buffer, compression: onebit}", "{name: buffer, compression: {name: topk, density: 0.1}}")


def keys_of(mode, server, collective="buffer"):
    return [f"sync={{mode: {mode}{f', server: {server}' if mode == 'sync_ps' else ''}}}", f"collective={collective}"]


def ended(world, where, *keys):
    """Train, and return what ended it on this rank, or None."""
    run = begun(world, where, *keys)
    try:
        for _ in range(run.config.train.epochs):
            one_epoch(run)
    except AgreedError as error:
        return error
    return None


@ranks(1, 3, virtual=True)
def step_is_dropped_whole_over_every_collective(world):
    for mode, server in SERVERS:
        blamed = world.size - 1
        fault = ["fault.on_nan=skip", f"fault.flip=gradients:{blamed}:5:nan"]
        found = {}
        for collective in COLLECTIVES:
            with folder(world) as where:
                records, steps, _ = train(world, world.size, where, *keys_of(mode, server, collective), *fault)
                assert records[0]["skipped"] == [{"step": 5, "ranks": [blamed]}], (mode, collective, records[0])
                assert not records[1]["skipped"]
                assert [record["wild_step"] for record in records] == [5, None], (mode, collective, records)
                assert 5 not in [step["step"] for step in steps]
                found[collective] = [record["params_sha256"] for record in records]
        assert len({tuple(h) for h in found.values()}) == 1, found
        with folder(world) as where:
            assert hashes(world, world.size, where, *keys_of(mode, server)) not in found.values(), "nothing was dropped"


@ranks(3, virtual=True)
def dropped_step_changes_neither_parameters_nor_state(world):
    for mode, server in SERVERS:
        for collective in ("shared", "buffer"):
            with folder(world) as where:
                keys = [*keys_of(mode, server, collective), "optimizer={name: adam, lr: 0.01}", "train.batch_size=203"]
                run = begun(world, where, *keys, "fault.on_nan=skip", "fault.flip=gradients:2:2:nan")
                arena, seen = run.network.arena, []
                for _ in range(3):  # of one step each
                    one_epoch(run)
                    seen.append((arena.params.tobytes(), arena.state.tobytes(), arena.version))
                assert seen[1] == seen[0], (mode, collective)
                assert seen[2][0] != seen[1][0]
                assert run.progress.step == 3


@ranks(3, virtual=True)
def codecs_forget_what_was_not_finite(world):
    for mode, server in SERVERS:
        for collective in INEXACT:
            with folder(world) as where:
                fault = ["fault.on_nan=skip", "fault.flip=gradients:2:5:nan"]
                records, _, _ = train(world, 3, where, *keys_of(mode, server, collective), *fault)
                assert sum(len(record["skipped"]) for record in records) <= 1, records
                assert np.isfinite([record["loss"] for record in records]).all()


@ranks(3, virtual=True)
def mpi_may_sum_on_the_way(world):
    for mode, server in SERVERS:
        for collective, blamed in (("buffer", 1), ("object", 1), ("hierarchical", 2)):
            with folder(world) as where:
                fault = ["fault.on_nan=skip", f"fault.flip=gradients:{blamed}:5:nan", "train.reproducible=none"]
                records, _, _ = train(world, 3, where, *keys_of(mode, server, collective), *fault)
                assert records[0]["skipped"] == [{"step": 5, "ranks": [blamed]}], (mode, server, collective)


@ranks(3, virtual=True)
def ranks_stop_or_go_back_after_the_same_step(world):
    for mode, server in SERVERS:
        for number, collective in enumerate(COLLECTIVES):
            policy = ("stop", "rollback")[number % 2]
            with folder(world) as where:
                fault = [f"fault.on_nan={policy}", "fault.flip=gradients:1:5:nan"]
                error = ended(world, where, *keys_of(mode, server, collective), *fault)
                assert "those of rank 1 were not in step 5 (epoch 1)" in str(error), error
                assert isinstance(error, Rollback) == (policy == "rollback")
                assert policy == "stop" or (error.ranks, error.step) == ((1,), 5)


@ranks(3, virtual=True)
def run_that_never_comes_right_ends_after_a_hundred_steps(world):
    with folder(world) as where:
        keys = ["dataset.samples=2000", "train.batch_size=4", "fault.on_nan=skip", "fault.flip=params:1:5:nan"]
        error = ended(world, where, *keys)
        assert "those of ranks 1, 2 were not in step 105 (epoch 1), nor in 99 steps before it" in str(error), error


@ranks(3, virtual=True)
def steps_dropped_with_good_ones_between_are_no_row(world):
    """As many as are too many in a row: one an epoch, of 9 steps or of 1."""
    for batch, n_steps in ((8, 9), (203, 1)):
        with folder(world) as where, in_each_process(world, patch.object(guard, "MAX_SKIPPED", 3)):
            keys = [*keys_of("allreduce", "colocated"), f"train.batch_size={batch}", "fault.on_nan=skip"]
            run, error = begun(world, where, *keys, "fault.flip=gradients:1:1:nan"), None
            try:
                for epoch in range(4):
                    run.guard.flip.step = epoch * n_steps + 1
                    one_epoch(run)
            except AgreedError as agreed:
                error = agreed
            told = world.allgather((run.progress.step, str(error)))
            assert len(set(told)) == 1, told
            if n_steps == 9:
                assert told[0] == (36, "None"), told
                assert [skipped["step"] for skipped in run.guard.skipped] == [1, 10, 19, 28]
            else:
                assert "in step 3 (epoch 3), nor in 2 steps before it, all dropped" in told[0][1], told


@ranks(4, virtual=True)
def post_of_a_worker_is_dropped_alone(world):
    fault = ["fault.on_nan=skip", "fault.flip=gradients:1:5:nan"]
    for store in ("shared", "window"):
        for keys in (
            "mode: async_ps, staleness: 0",
            "mode: async_ps, staleness: 1",
            "mode: sync_ps, backup_workers: 1",
        ):
            with folder(world) as where:
                records, _, _ = train(world, 4, where, f"sync={{{keys}, store: {store}}}", *fault)
                dropped = [skipped for record in records for skipped in record["skipped"]]
                # what comes too late for a step with backup workers is dropped anyway
                assert dropped == [{"step": 5, "ranks": [1]}] or ("backup" in keys and not dropped), (keys, dropped)
                assert np.isfinite(records[-1]["loss"])


FLIPS = (
    ("params", 1, 3, 0), ("params", 2, 3, 30), ("params", 0, 3, 32 * 100 + 22), ("params", 1, 7, 5),
    ("state", 1, 3, 31), ("state", 2, 3, 3000),
)  # fmt: skip


@ranks(3, virtual=True)
def replicas_are_repaired_to_the_bits_of_an_undisturbed_run(world):
    for mode, server in SERVERS:
        with folder(world) as where:
            whole = hashes(world, world.size, where, *keys_of(mode, server))
        for number, (kind, rank, step, bit) in enumerate(FLIPS):
            if kind == "state" and mode == "sync_ps":
                continue  # only rank 0 has any
            collective = ("buffer", "object")[number % 2]
            with folder(world) as where:
                fault = ["fault.check_every=4", f"fault.flip={kind}:{rank}:{step}:{bit}"]
                records, _, _ = train(world, world.size, where, *keys_of(mode, server, collective), *fault)
                repaired = [repair for record in records for repair in record["repaired"]]
                assert repaired == [{"rank": rank, "step": step + 1}], (mode, collective, fault, repaired)
                assert [record["params_sha256"] for record in records] == whole, (mode, server, collective, fault)


@ranks(3, virtual=True)
def last_step_of_an_epoch_is_checked(world):
    for mode, server in SERVERS:
        last = -(-203 // (8 * (world.size - (server == "dedicated"))))
        with folder(world) as where:
            whole = hashes(world, world.size, where, *keys_of(mode, server))
        with folder(world) as where:
            fault = ["fault.check_every=1000", f"fault.flip=params:1:{last}:3"]
            records, _, _ = train(world, world.size, where, *keys_of(mode, server, "buffer"), *fault)
            assert records[0]["repaired"] == [{"rank": 1, "step": last}], (mode, server)
            assert [record["params_sha256"] for record in records] == whole, (mode, server)


@ranks(4, virtual=True)
def nodes_are_repaired_from_each_other(world):
    for mode, server in SERVERS:
        with folder(world) as where, own_network(world, world.rank % 2):
            whole = hashes(world, world.size, where, *keys_of(mode, server, "hierarchical"))
        for kind, bit in (("params", 0), ("params", 30), ("state", 3000)):
            with folder(world) as where, own_network(world, world.rank % 2):
                # ranks are numbered node by node: the second node's first one, which looks, is 2
                fault = ["fault.check_every=1", f"fault.flip={kind}:2:4:{bit}"]
                records, _, _ = train(world, world.size, where, *keys_of(mode, server, "hierarchical"), *fault)
                assert records[0]["repaired"] == [{"rank": 2, "step": 5}], records[0]
                assert [record["params_sha256"] for record in records] == whole


@ranks(4, virtual=True)
def nodes_drop_a_step_together(world):
    for mode, server in SERVERS:
        for reproducible, policy in (("fixed_workers", "skip"), ("none", "rollback")):
            with folder(world) as where, own_network(world, world.rank % 2):
                keys = [*keys_of(mode, server, "hierarchical"), f"train.reproducible={reproducible}"]
                error = ended(world, where, *keys, f"fault.on_nan={policy}", "fault.flip=gradients:3:5:nan")
                assert isinstance(error, Rollback) == (policy == "rollback")
                assert error is None or (error.ranks, error.step) == ((3,), 5)


@ranks(1, 3, virtual=True)
def shared_memory_is_held_against_what_was_written(world):
    last = -(-203 // (8 * world.size))
    flips = (("params", 0, 3), ("params", 31, 4), ("state", 77, 3), ("params", 3000, last))
    for mode, server in SERVERS:
        for number, (kind, bit, step) in enumerate(flips):
            collective = ("shared", "{name: shared, chunk_bytes: 4096}", "hierarchical")[number % 3]
            with folder(world) as where:
                fault = ["fault.check_every=1", f"fault.flip={kind}:{world.size - 1}:{step}:{bit}"]
                error = ended(world, where, *keys_of(mode, server, collective), *fault)
                assert isinstance(error, Rollback), (mode, collective, fault)
                assert "changed between steps" in str(error) or "changed after step" in str(error)
                assert error.step in (step, step + 1)
                assert error.ranks == (0,), "there is but one page, which rank 0 sums"


@ranks(3, virtual=True)
def checks_change_no_bit(world):
    for mode, server in SERVERS:
        for collective in ("{name: shared, chunk_bytes: 4096}", "buffer"):
            with folder(world) as where:
                keys = [*keys_of(mode, server, collective), "optimizer={name: adam, lr: 0.01}"]
                plain = hashes(world, 3, where, *keys)
                assert hashes(world, 3, where, *keys, "fault.check_every=2", "fault.on_nan=rollback") == plain
