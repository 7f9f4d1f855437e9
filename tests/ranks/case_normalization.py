"""Normalization, shortcuts and depthwise layers over ranks: the same bits in every way, also of batch statistics."""

from itertools import product

from tests.helpers.suite import IS_FULL
from tests.ranks.every_collective import COLLECTIVES
from tests.ranks.harness import ranks
from tests.ranks.torch_models import ROW, SHORT, need_torch
from tests.ranks.training import continued, folder, hashes, train

NET = "model=tests.helpers.tiny:residual"
#: buckets of a layer or two, so that gradients of the last layers leave before those of the first are there
BUCKETS = "{name: buffer, bucket_bytes: 256}"
MODES = (("allreduce", "dedicated"), ("sync_ps", "dedicated"), ("sync_ps", "colocated"))


@ranks(4, virtual=True)
def batch_statistics_have_the_same_bits_in_every_way(world):
    with folder(world) as where:
        every = [BUCKETS if collective == "buffer" else collective for collective in COLLECTIVES]
        chosen = list(product(MODES, every))
        if not IS_FULL:  # each collective, and each mode
            chosen = [(MODES[at % 3], collective) for at, collective in enumerate(every)]
        found = {}
        for (mode, server), collective in chosen:
            n_ranks = 4 if (mode, server) == ("sync_ps", "dedicated") else 3
            keys = [NET, f"sync.mode={mode}", f"collective={collective}", "train.threads=1"]
            if mode == "sync_ps":
                keys.append(f"sync.server={server}")
            found[mode, server, collective] = tuple(hashes(world, n_ranks, where, *keys))
        keys = (NET, "sync.server=colocated", "sync.servers=2", "train.threads=1")
        found["two servers"] = tuple(hashes(world, 3, where, *keys))
        found["two threads"] = tuple(hashes(world, 3, where, NET, "sync.mode=allreduce", "train.threads=2"))
        assert len(set(found.values())) == 1, found
        assert len(set(found["two servers"])) == 2, "training changed nothing"


@ranks(5, virtual=True)
def batch_statistics_of_blocks_are_those_of_any_number_of_workers(world):
    with folder(world) as where:
        keys = (NET, "sync.mode=allreduce", "train.reproducible=any_workers", "train.global_batch=24")
        alone, *others = (tuple(hashes(world, workers, where, *keys)) for workers in range(1, 6))
        assert set(others) == {alone}
        assert len(set(alone)) == 2, "training changed nothing"


@ranks(4, full=True)
def batch_statistics_in_bfloat16_have_the_same_bits_in_every_way(world):
    with folder(world) as where:
        keys = (NET, "train.precision=bf16", "dataset.limit=75")
        ways = ["collective=buffer"], ["sync.server=colocated", "sync.servers=2"], ["sync.mode=allreduce"]
        found = {tuple(hashes(world, 4 - (at > 0), where, *keys, *way)) for at, way in enumerate(ways)}
        assert len(found) == 1
        assert len(set(*found)) == 2, "training changed nothing"
        over = "model={name: 'tests.helpers.tiny:residual', norm: batch_over_workers}"
        keys = (over, *keys[1:], "sync.mode=allreduce", "train.reproducible=any_workers", "train.global_batch=24")
        assert len({tuple(hashes(world, workers, where, *keys)) for workers in (1, 3)}) == 1


@ranks(1, 3, virtual=True)
def batch_statistics_go_on_to_the_same_bits(world):
    with folder(world) as where:
        keys = (NET, "train.epochs=4", "sync.mode=allreduce")
        whole, again = continued(world, where, *keys)
        assert whole == again


@ranks(4, full=True)
def stages_and_shards_have_batch_statistics(world):
    """A pipeline in either order of its passes, that repeats them or not, has one run's bits; shards train."""
    with folder(world) as where:
        found = set()
        for pipeline in ("{pipeline: 2}", "{pipeline: 2, schedule: gpipe}", "{pipeline: 2, recompute: true}"):
            found.add(tuple(hashes(world, 4, where, NET, f"parallel={pipeline}", "parallel.micro_batches=4")))
        assert len(found) == 1
        assert len(set(*found)) == 2, "training changed nothing"
        assert len(set(hashes(world, 4, where, NET, "parallel={model: 2}"))) == 2


@ranks(3, virtual=True)
def modes_that_cannot_carry_statistics_say_so(world):
    with folder(world) as where:
        assert train(world, 3, where, NET, "sync.mode=async_ps", expect=2) is None
        without = "model={name: 'tests.helpers.tiny:residual', norm: group}"
        assert len(set(hashes(world, 3, where, without, "sync.mode=async_ps"))) == 2
        assert len(set(hashes(world, 3, where, NET, "sync.mode=local_sgd"))) == 2


@ranks(4, full=True)  # as other cases of PyTorch, which each job imports once
def parts_of_a_torch_module_send_no_statistic_before_it_is_there(world):
    need_torch()
    with folder(world) as where:
        keys = (ROW, *SHORT, "sync.mode=allreduce")
        found = {tuple(hashes(world, 3, where, *keys, f"collective={c}")) for c in ("shared", BUCKETS)}
        assert len(found) == 1
