"""Networks with convolutions split by samples, dense layers by channels: what one process learns, with less moved."""

import numpy as np

from psframe.tensors import tensors
from tests.ranks.harness import ranks
from tests.ranks.training import folder, key, train


@ranks(2, 3, 4, full=True)
def hybrid_of_shards_learns_what_one_process_does(world):
    # of 4 micro-batches of the 5 samples of the last step but one has a sample for the first shard: it is the last
    for n_micro, kernels, n_samples in ((1, "direct", 203), (4, "direct", 205), (3, "blas", 203)):
        with folder(world) as where:
            keys = ["sync=allreduce", f"nn.kernels={kernels}", "model={name: 'tests.helpers.tiny:build', dropout: 0.2}"]
            keys.append(f"dataset.samples={n_samples}")
            for n_shards in (n for n in (2, 3, 4) if world.size % n == 0):
                more = {"micro_batches": n_micro, "model": n_shards, "convolutions": "data"}
                one, _, run = train(world, world.size // n_shards, where, *keys, key({"micro_batches": n_micro}))
                hybrid, _, of_hybrid = train(world, world.size, where, *keys, key(more), "name=hybrid")
                for name, tensor in tensors(run).items():
                    assert np.allclose(tensor, tensors(of_hybrid)[name], rtol=1e-4, atol=1e-5), (n_shards, name)
                assert np.allclose([r["loss"] for r in one], [r["loss"] for r in hybrid], rtol=1e-5)
                assert [r["accuracy"] for r in one] == [r["accuracy"] for r in hybrid]


@ranks(2, virtual=True)
def hybrid_has_the_statistics_of_one_process(world):
    """The first layer's means are those of its samples, whoever computes them, while no weight changes."""
    with folder(world) as where:
        keys = ["sync=allreduce", "nn.kernels=blas", "model=tests.helpers.nets:normalized", "train.batch_size=6"]
        keys += ["optimizer.lr=1e-12", "dataset={name: synthetic, shape: [1, 6, 6], classes: 3, samples: 37}"]
        for n_micro in (1, 4):  # of which the last step's one sample leaves a shard without any
            _, _, one = train(world, 1, where, *keys, key({"micro_batches": n_micro}))
            _, _, run = train(
                world, 2, where, *keys, key({"micro_batches": n_micro, "model": 2, "convolutions": "data"})
            )
            of_one, found = tensors(one), tensors(run)
            (mean,) = (name for name in of_one if name.endswith("running_mean"))
            assert np.abs(of_one[mean]).max() > 1e-3
            assert np.allclose(found[mean], of_one[mean], rtol=1e-4, atol=1e-6), n_micro


@ranks(2, virtual=True)
def hybrid_exchanges_a_tenth_of_the_bytes(world):
    """Of what replicas do, where dense layers have most of the parameters."""
    with folder(world) as where:
        keys = ["dataset={name: synthetic, shape: [3, 24, 24], classes: 10, samples: 64}", "train.epochs=1"]
        keys += ["sync=allreduce", "collective=buffer", "model=tests.helpers.nets:heavy", "nn.kernels=blas"]
        data, _, _ = train(world, 2, where, *keys, "train.batch_size=8")
        cut = key({"model": 2, "convolutions": "data"})
        hybrid, _, _ = train(world, 2, where, *keys, "train.batch_size=16", cut, "name=hybrid")
        assert hybrid[0]["bytes_moved"] <= data[0]["bytes_moved"] / 10
