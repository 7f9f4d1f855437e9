"""A user's module in PyTorch over ranks: the bits of every way that gradients go, and of runs that are continued."""

from itertools import product

import numpy as np

from tests.helpers.suite import IS_FULL
from tests.ranks.harness import ranks
from tests.ranks.torch_models import ATTENTION, NET, ROW, SHORT, need_torch
from tests.ranks.training import continued, folder, hashes, train


@ranks(4, virtual=True)
def torch_module_has_the_same_bits_in_every_way(world):
    need_torch()
    with folder(world) as where:
        collectives, modes = ("shared", "buffer", "object", "hierarchical"), (("allreduce", 3), ("sync_ps", 4))
        chosen = list(product((NET, ROW), collectives, modes))
        if not IS_FULL:  # one net, in each mode
            chosen = [chosen[at] for at in (0, 3)]
        found = {net: set() for net, *_ in chosen}
        for net, collective, (mode, n_ranks) in chosen:
            keys = (net, *SHORT, f"sync.mode={mode}", f"collective={collective}")
            found[net].add(tuple(hashes(world, n_ranks, where, *keys)))
        for net, hashes_of_net in found.items():
            of_servers = hashes(world, 3, where, net, *SHORT, "sync.server=colocated", "sync.servers=2")
            assert hashes_of_net == {tuple(of_servers)}, (net, hashes_of_net, of_servers)
            assert len(set(of_servers)) == 2, "training changed nothing"


@ranks(4, full=True)
def torch_module_is_trained_by_modes_that_keep_statistics(world):
    need_torch()
    keeps = ["local_sgd", "block_momentum", "easgd", "easgd, synchronous: true", "sync_ps, backup_workers: 1"]
    with folder(world) as where:
        for mode in keeps:
            records, _, _ = train(world, 4, where, NET, *SHORT, "train.epochs=3", f"sync={{mode: {mode}}}")
            assert records[-1]["test_loss"] < records[0]["test_loss"] + 0.05, (mode, records)
        for mode in ("async_ps", "hogwild", "dogwild", "hybrid"):
            assert train(world, 4, where, NET, *SHORT, f"sync.mode={mode}", expect=2) is None
            records, _, _ = train(world, 4, where, ATTENTION, *SHORT, f"sync.mode={mode}")
            assert np.isfinite(records[-1]["test_loss"])
        train(world, 4, where, NET, *SHORT, "collective={name: buffer, compression: onebit}", expect=2)
        train(world, 4, where, ATTENTION, *SHORT, "collective={name: buffer, compression: onebit}")


@ranks(1, 3, virtual=True)
def torch_module_goes_on_to_the_same_bits(world):
    """Statistics, dropout and optimizer state are all in the checkpoint, or follow from the seed."""
    need_torch()
    with folder(world) as where:
        keys = (NET, *SHORT, "train.epochs=4", "sync.mode=allreduce")
        whole, again = continued(world, where, *keys)
        assert whole == again


@ranks(4, full=True)
def torch_module_without_statistics_has_the_curve_of_one(world):
    """And over any number of workers the same bits, in the blocks of ``any_workers``."""
    need_torch()
    plain = "model={name: torch, build: 'tests.helpers.torch_nets:plain'}"
    with folder(world) as where:
        curves = []
        for workers in (1, 2, 4):
            keys = (plain, f"train.batch_size={32 // workers}", "sync.mode=allreduce", "train.threads=1")
            _, steps, _ = train(world, workers, where, *keys)
            curves.append([step["loss"] for step in steps])
        for curve in curves[1:]:
            np.testing.assert_allclose(curve, curves[0], rtol=1e-4)
        keys = (NET, *SHORT, "sync.mode=allreduce", "train.reproducible=any_workers", "train.global_batch=32")
        assert len({tuple(hashes(world, workers, where, *keys)) for workers in (1, 2, 3, 4)}) == 1
