"""Optimizers that need norms of tensors, or of the whole gradient: one run, whoever updates and wherever it is cut."""

from itertools import product

import h5py
import numpy as np

from psframe.cluster.joining import join
from psframe.optim import LAMB, LARS, SGD
from tests.helpers.suite import IS_FULL
from tests.ranks.harness import ranks
from tests.ranks.nodes import own_network
from tests.ranks.rig import Rig
from tests.ranks.training import folder, hashes, train

OPTIMIZERS = (
    "{name: lars, lr: 5.0, weight_decay: 0.01, groups: [{tensors: '*.bias', lr: 0.5}]}",
    "{name: lamb, lr: 0.01, weight_decay: 0.01}",
    "{name: sgd, lr: 0.05, momentum: 0.9, clip_norm: 0.3}",
    "{name: lamb, lr: 0.01, clip_norm: 0.3, groups: [{tensors: '*Dense*', adapt: false}]}",
)
ANY = ("train.reproducible=any_workers", "train.global_batch=24", "train.blocks=8")
DEDICATED, COLOCATED = ("sync.mode=sync_ps", "sync.server=dedicated"), ("sync.mode=sync_ps", "sync.server=colocated")
SEVERAL = ("sync={mode: sync_ps, server: colocated, servers: 2}", "collective={name: buffer, bucket_bytes: 64}")
#: ways to move gradients, by the ranks that compute none
WAYS = (
    (0, ("sync.mode=allreduce", "collective={name: shared, reducers: all}")),
    (0, ("sync.mode=allreduce", "collective={name: shared, reducers: all, chunk_bytes: 4096}")),
    (0, ("sync.mode=allreduce", "collective=hierarchical")),
    (0, ("sync.mode=allreduce", "collective={name: buffer, bucket_bytes: 64}")),
    (0, ("sync.mode=allreduce", "collective=object")),
    (1, (*DEDICATED, "collective={name: shared, reducers: server}")),
    (1, (*DEDICATED, "collective={name: buffer, bucket_bytes: 64}")),
    (1, (*DEDICATED, "collective=object")),
    (0, (*COLOCATED, "collective={name: shared, reducers: cores}")),
    (0, SEVERAL),
    (2, (SEVERAL[0].replace("colocated", "dedicated"), SEVERAL[1])),
)


@ranks(3, 5, 7, full=True)
def norms_are_the_same_for_any_number_of_workers_and_every_way(world):
    with folder(world) as where:
        for at, optimizer in enumerate(OPTIMIZERS):
            keys = [f"optimizer={optimizer}", *ANY]
            alone = hashes(world, 1, where, *keys)
            assert len(set(alone)) == 2, "training changed nothing"
            for number, (apart, way) in enumerate(WAYS):
                for n_workers in range(2 - (apart > 0), min(5, world.size - apart) + 1):
                    if apart == 0 and n_workers == 1:
                        continue
                    if not IS_FULL and (number + n_workers + at) % 6:
                        continue
                    got = hashes(world, n_workers + apart, where, *keys, *way)
                    assert got == alone, (optimizer, n_workers, way)


@ranks(4, virtual=True)
def norms_are_the_same_on_two_nodes(world):
    with folder(world) as where:
        for optimizer in OPTIMIZERS[:3]:
            alone = hashes(world, 1, where, f"optimizer={optimizer}", *ANY)
            for mode in (("sync.mode=allreduce",), DEDICATED):
                with own_network(world, world.rank % 2):
                    how = ["collective={name: hierarchical, reducers: all}", *mode]
                    assert hashes(world, 4, where, f"optimizer={optimizer}", *ANY, *how) == alone, (optimizer, mode)


@ranks(3, 4, virtual=True)
def mpi_may_choose_the_order_of_sums_before_a_norm(world):
    ways = (WAYS[3], WAYS[6], (0, (SEVERAL[0], "collective={name: buffer, bucket_bytes: 64, gather: reduce}")))
    with folder(world) as where:
        for optimizer, (_, way) in product(OPTIMIZERS[:3], ways) if IS_FULL else zip(OPTIMIZERS, ways, strict=False):
            keys = [f"optimizer={optimizer}", *way]
            exact = train(world, world.size, where, *keys[:-1], "collective=buffer")[0][-1]
            summed = train(world, world.size, where, *keys, "train.reproducible=none")[0][-1]
            np.testing.assert_allclose(summed["loss"], exact["loss"], rtol=1e-3, err_msg=f"{optimizer} {way}")


@ranks(2, 3, virtual=True)
def run_with_norms_goes_on_to_the_same_bits(world):
    every = [*zip(OPTIMIZERS, (WAYS[0], WAYS[3], WAYS[7], WAYS[9]), strict=True)]
    for optimizer, way in every if IS_FULL else every[::2]:
        keys = [f"optimizer={optimizer}", *way[1], "checkpoint.every_epochs=1"]
        with folder(world) as where:
            whole = hashes(world, world.size, where, *keys, "name=whole", "train.epochs=3")
            hashes(world, world.size, where, *keys, "name=cut", "train.epochs=1")
            records = train(world, world.size, where, *keys, "name=cut", "train.epochs=3", "checkpoint.resume=auto")[0]
            assert [record["params_sha256"] for record in records] == whole


@ranks(3, virtual=True)
def every_mode_takes_norms(world):
    """To a finite loss: each worker, or the server, has whole vectors."""
    modes = (
        "async_ps",
        "easgd",
        "hogwild",
        "local_sgd",
        "block_momentum",
        "{mode: easgd, synchronous: true}",
        "hybrid",
    )
    with folder(world) as where:
        few = ((mode, OPTIMIZERS[1 + at % 2]) for at, mode in enumerate(modes))
        for mode, optimizer in product(modes, OPTIMIZERS) if IS_FULL else few:
            records = train(world, 3, where, f"sync={mode}", f"optimizer={optimizer}")[0]
            assert np.isfinite(records[-1]["loss"]), (mode, optimizer)


@ranks(2, virtual=True)
def checks_and_bfloat16_go_with_norms(world):
    with folder(world) as where:
        for optimizer in OPTIMIZERS[:3]:
            keys = [f"optimizer={optimizer}", "sync.mode=allreduce", "collective={name: shared, reducers: all}"]
            plain = hashes(world, 2, where, *keys)
            assert hashes(world, 2, where, *keys, "fault={check_every: 2, on_nan: skip}") == plain
            bf16 = [*keys, "train.precision=bf16"]
            assert hashes(world, 2, where, *bf16) == hashes(world, 2, where, *bf16, "collective=buffer")


@ranks(4, virtual=True)
def stages_have_whole_tensors_and_shards_have_not(world):
    with folder(world) as where:
        lars = f"optimizer={OPTIMIZERS[1]}"
        wanted = hashes(world, 2, where, lars, "sync.mode=allreduce", "parallel.micro_batches=4")
        got = hashes(world, 4, where, lars, "sync.mode=allreduce", "parallel={pipeline: 2, micro_batches: 4}")
        assert got == wanted
        train(world, 4, where, lars, "sync.mode=allreduce", "parallel.model=2", expect=2)
        train(world, 4, where, f"optimizer={OPTIMIZERS[2]}", "sync.mode=allreduce", "parallel.pipeline=2", expect=2)
        train(world, 4, where, lars, "sync.mode=allreduce", "collective=tests.helpers.own:Rows", expect=2)


@ranks(2, 4, virtual=True)
def each_tensor_is_updated_by_one_rank(world):
    """And all that a norm of the whole gradient limits by the first."""
    cluster, shapes = join(world), [(700, 30), (30,), (900, 20), (20,), (800, 20)]
    for optimizer in (LARS(lr=1.0), LAMB(), SGD(clip_norm=1.0)):
        for form in (("shared", {"reducers": "all"}), ("shared", {"reducers": "all", "chunk_bytes": 4096})):
            rig = Rig(cluster, {"mode": "allreduce"}, form, shapes, optimizer=optimizer)
            parts = [s for s, _ in rig.collective._means if s.start < s.stop]
            starts = {0, rig.layout.size, *(slot.start for slot in rig.layout.slots.values())}
            every = [(s.start, s.stop) for found in world.allgather(parts) for s in found]
            assert sum(stop - start for start, stop in every) == rig.layout.size
            if optimizer.cuts == "nowhere":
                assert every == [(0, rig.layout.size)]
                assert bool(parts) == (world.rank == 0)
            else:
                assert {end for segment in every for end in segment} <= starts
                assert len(world.allgather(bool(parts))) == world.size
            rig.close()


@ranks(2, virtual=True)
def state_in_a_checkpoint_is_that_of_one_rank(world):
    found = []
    with folder(world) as where:
        for n, more in ((1, ()), (2, SEVERAL)):
            run = train(world, n, where, f"optimizer={OPTIMIZERS[1]}", *ANY, *more)[2]
            with h5py.File(run / "checkpoints" / (run / "checkpoints" / "latest").read_text().strip()) as file:
                found.append(file["state"][:])
    np.testing.assert_array_equal(*found)
