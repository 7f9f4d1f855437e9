"""Batch statistics over all workers: one run for any number of workers, however gradients move."""

import numpy as np

from tests.helpers.suite import IS_FULL
from tests.ranks.harness import ranks
from tests.ranks.nodes import own_network
from tests.ranks.training import continued, folder, hashes, train

NET = "model=tests.helpers.tiny:meeting"
SHORTCUTS = "model={name: 'tests.helpers.tiny:residual', norm: batch_over_workers}"
ANY = ("train.reproducible=any_workers", "train.global_batch=24", "train.blocks=8")
FEW = "dataset.limit=75"  # three steps and a rest
ALLREDUCE = ("sync.mode=allreduce",)
DEDICATED, COLOCATED = ("sync.mode=sync_ps", "sync.server=dedicated"), ("sync.mode=sync_ps", "sync.server=colocated")


@ranks(6, virtual=True)
def statistics_over_workers_are_those_of_any_number_of_workers(world):
    """Also in a last step of fewer samples than blocks; of few steps, in each of which six ranks meet many times."""
    with folder(world) as where:
        for net in (NET, SHORTCUTS) if IS_FULL else (NET,):
            keys = (net, FEW, *ANY)
            alone = hashes(world, 1, where, *keys, *ALLREDUCE)
            assert len(set(alone)) == 2, "training changed nothing"
            for workers in range(2, 6) if IS_FULL else (2, 5):
                assert hashes(world, workers, where, *keys, *ALLREDUCE) == alone, (net, workers)
            for workers in (2, 5) if IS_FULL else (5,):
                assert hashes(world, workers + 1, where, *keys, *DEDICATED) == alone, (net, workers)


@ranks(3, virtual=True)
def statistics_over_workers_are_the_same_in_every_way(world):
    ways = (
        (*ALLREDUCE, "collective={name: buffer, bucket_bytes: 256}"),
        (*ALLREDUCE, "collective={name: shared, chunk_bytes: 4096}"),
        (*COLOCATED, "collective=object"),
        (*ALLREDUCE, "train.threads=2"),
    )
    with folder(world) as where:
        for more in (ANY, ()):
            first, *others = (hashes(world, 3, where, NET, *more, *way) for way in ways)
            assert others == [first] * (len(ways) - 1)
            assert len(set(first)) == 2, "training changed nothing"


@ranks(4, virtual=True)
def statistics_over_workers_cross_nodes(world):
    with folder(world) as where:
        for mode in (ALLREDUCE, DEDICATED):
            alone = hashes(world, 4, where, NET, *mode, *ANY, "collective={name: hierarchical, reducers: all}")
            with own_network(world, world.rank % 2):
                apart = hashes(world, 4, where, NET, *mode, *ANY, "collective={name: hierarchical, reducers: all}")
            assert apart == alone


@ranks(4, virtual=True)
def workers_meet_while_gradients_are_on_their_way_between_nodes(world):
    """MPI sums buckets as they come, at another time on each node, and a worker without samples gives its own last."""
    with folder(world) as where:
        keys = (NET, *ALLREDUCE, "train.batch_size=12", "train.reproducible=none", "train.epochs=3")
        with own_network(world, world.rank % 2):
            records = train(world, 4, where, *keys, "collective={name: hierarchical, bucket_bytes: 64}")[0]
        one = train(world, 4, where, *keys[:3], "train.epochs=3", "collective=shared")[0]
        np.testing.assert_allclose([r["loss"] for r in records], [r["loss"] for r in one], rtol=1e-3)


@ranks(3, virtual=True)
def workers_compute_together_again_behind_a_repair(world):
    """Samples that met those of a rank with a wrong parameter were wrong, too."""
    with folder(world) as where:
        keys = (NET, *ALLREDUCE, "collective=buffer", *ANY, "fault.check_every=4")
        whole = hashes(world, 3, where, *keys)
        records = train(world, 3, where, *keys, "fault.flip=params:1:7:27")[0]
        assert [repair for record in records for repair in record["repaired"]] == [{"rank": 1, "step": 8}]
        assert [record["params_sha256"] for record in records] == whole


@ranks(2, 3, virtual=True)
def run_with_statistics_over_workers_goes_on_to_the_same_bits(world):
    with folder(world) as where:
        whole, again = continued(world, where, NET, "train.epochs=4", *ALLREDUCE, *ANY)
        assert whole == again


@ranks(3, virtual=True)
def worker_without_samples_meets_the_others(world):
    """The last step of an epoch has 2 samples, or 3 in 8 blocks, so that some workers, and blocks, have none."""
    with folder(world) as where:
        few = "dataset={name: synthetic, shape: [2, 8, 9], classes: 5, samples: 32}"
        for batch in (("train.batch_size=8",), ("train.reproducible=any_workers", "train.global_batch=23")):
            records = train(world, 3, where, NET, *ALLREDUCE, few, *batch)[0]
            assert len({record["params_sha256"] for record in records}) == 2


@ranks(3, full=True)
def what_cannot_let_workers_meet_says_so(world):
    with folder(world) as where:
        for keys in (("sync.mode=async_ps",), ("sync.mode=local_sgd",), ("parallel.micro_batches=2",)):
            assert train(world, 3, where, NET, *keys, expect=2) is None
        assert train(world, 3, where, NET, "parallel={pipeline: 3}", expect=2) is None
