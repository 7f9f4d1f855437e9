"""``train.reproducible: any_workers``: one run, whoever and however many take its steps."""

import shutil
import unittest
from itertools import product
from pathlib import Path

import numpy as np

from psframe.cluster.joining import join
from psframe.collectives.order import widths
from tests.helpers.suite import IS_FULL
from tests.ranks.contract import LAYOUTS, MODES, STEPS, expected
from tests.ranks.contract import train as take_steps
from tests.ranks.every_collective import COLLECTIVES, FORMS
from tests.ranks.harness import ranks
from tests.ranks.nodes import own_network
from tests.ranks.training import folder, hashes, train

FASHION = Path("/usr/share/datasets/fashion-mnist")
KEYS = (
    "train.reproducible=any_workers",
    "train.global_batch=24",
    "model={name: 'tests.helpers.tiny:build', dropout: 0.3}",
)
SERVERS = (("allreduce", "dedicated"), ("sync_ps", "dedicated"), ("sync_ps", "colocated"))


def tree(rows):
    """The sum over workers in NumPy, from the root down: a node that is a worker's, or the sum of its halves."""
    spans = widths(len(rows))
    ends = np.cumsum(spans)
    nodes = {(end - span, end): row for span, end, row in zip(spans, ends.tolist(), rows, strict=True)}

    def node(begin, end):
        middle = (begin + end) // 2
        return nodes[begin, end] if (begin, end) in nodes else node(begin, middle) + node(middle, end)

    return node(0, int(ends[-1]))


def seen(world, n_ranks, where, *keys, **kwargs):
    """Return what must not depend on the workers: parameters and losses, to the bit, and the learning rates."""
    records, steps, _ = train(world, n_ranks, where, *keys, **kwargs)
    of_epochs = [(r["params_sha256"], r["loss"], r["test_loss"], r["accuracy"], r["global_batch"]) for r in records]
    return of_epochs, [(s["loss"], s["n_samples"], s["lr"]) for s in steps]


@ranks(2, 3, 4, 7, 16, virtual=True)
def collectives_add_in_the_order_of_the_tree(world):
    cluster = join(world)
    for shapes in LAYOUTS:
        for mode, arguments in MODES:
            for form in (form for form in FORMS if "domains" not in form[1]):  # which a tree refuses
                arena, _, team, update = take_steps(cluster, mode, arguments, form, "any_workers", shapes)
                wanted = expected(team.n_workers, arena.layout, STEPS, tree)
                np.testing.assert_array_equal(arena.params, wanted, err_msg=f"{mode} {arguments} over {form}, {shapes}")
                assert update.first_nonfinite_step == 0


@ranks(2, 3, 4, 7, 16, virtual=True)
def tree_passes_through_the_nodes(world):
    """Of two and of three nodes, whose workers often are no node of the tree together: several sums pass on."""
    for n_nodes in (2, 3):
        with own_network(world, world.rank % n_nodes):
            cluster = join(world)
        for mode, arguments in MODES:
            form = ("hierarchical", {"reducers": "all"})
            arena, _, team, _ = take_steps(cluster, mode, arguments, form, "any_workers", [(140_000,)])
            wanted = expected(team.n_workers, arena.layout, STEPS, tree)
            np.testing.assert_array_equal(arena.params, wanted, err_msg=f"{mode} {arguments} on {n_nodes} nodes")


@ranks(7, 9, virtual=True)
def workers_of_any_number_over_every_collective_are_one_run(world):
    """Also where the last step has fewer samples than blocks, layers draw at random and the rate has a schedule."""
    most = min(8, world.size)
    keys = [*KEYS, "dataset.limit=101", "schedule={name: cosine, warmup_epochs: 1, base_batch: 16}"]
    with folder(world) as where:
        alone = seen(world, 1, where, *keys)
        assert len({epoch[0] for epoch in alone[0]}) == 2, "training changed nothing"
        for at, (mode, server) in enumerate(SERVERS):
            first = 1 if server == "dedicated" and mode == "sync_ps" else 0
            every = product(range(2, most + 1 - first), COLLECTIVES)
            # every collective meets workers that have less than others
            few = [(3, COLLECTIVES[0]), *((most - first, collective) for collective in COLLECTIVES[at::2])]
            for workers, collective in every if IS_FULL else few:
                how = [f"sync.mode={mode}", f"sync.server={server}", f"collective={collective}"]
                assert seen(world, workers + first, where, *keys, *how) == alone, (workers, *how)


@ranks(7, 9, virtual=True)
def workers_of_any_number_on_two_nodes_are_one_run(world):
    with folder(world) as where:
        alone = seen(world, 1, where, *KEYS)
        for mode, server in SERVERS:
            for n_ranks in (3, 6, min(8, world.size)):
                with own_network(world, world.rank % 2):
                    how = [f"sync.mode={mode}", f"sync.server={server}", "collective=hierarchical"]
                    assert seen(world, n_ranks, where, *KEYS, *how) == alone, (n_ranks, *how)


@ranks(4, full=True)
def workers_and_threads_are_one_run_with_fewer_products(world):
    """Tiles of several samples are multiplied together; whose they are, and who does so, changes nothing."""
    model = "model={name: 'tests.helpers.tiny:deep', layers: 2, width: 33}"
    keys = [*KEYS[:2], model, "train.blocks=4", "dataset.limit=50", "train.epochs=1"]
    with folder(world) as where:
        alone = seen(world, 1, where, *keys, "nn.kernels=winograd")
        for n_ranks, mode, threads in ((2, "allreduce", 2), (4, "sync_ps", 1)):
            how = [f"sync.mode={mode}", f"train.threads={threads}", "nn.kernels=winograd"]
            assert seen(world, n_ranks, where, *keys, *how) == alone, (n_ranks, *how)
        assert seen(world, 1, where, *keys) != alone, "there was nothing to compute otherwise"


@ranks(4, virtual=True)
def block_a_worker_lets_gradients_leave_early(world):
    keys = [*KEYS, "train.blocks=4", "sync.mode=allreduce", "collective={name: buffer, bucket_bytes: 64}"]
    with folder(world) as where:
        records, _, _ = train(world, 4, where, *keys)
        assert all(0 <= record["overlap"] <= 1 for record in records)
        assert [r["params_sha256"] for r in records] == hashes(world, 1, where, *keys)
        # a worker's first block is not all that it has to give
        records, _, _ = train(world, 3, where, *keys)
        assert [r["params_sha256"] for r in records] == hashes(world, 1, where, *keys)


@ranks(4, virtual=True)
def blocks_and_global_batch_are_what_a_run_depends_on(world):
    with folder(world) as where:
        found = [hashes(world, 2, where, *KEYS, *more) for more in ([], ["train.blocks=4"], ["train.global_batch=25"])]
        assert len({tuple(h) for h in found}) == 3, "a cut that makes no difference tests nothing"


@ranks(4, 7, virtual=True)
def run_goes_on_with_other_workers(world):
    for mode, optimizer in (
        ("allreduce", "{name: sgd, lr: 0.05, momentum: 0.9}"),
        ("sync_ps", "{name: adam, lr: 0.01}"),
    ):
        keys = [*KEYS, f"sync.mode={mode}", f"optimizer={optimizer}", "checkpoint.resume=auto"]
        with folder(world) as where:
            whole = seen(world, 1, where, *keys, "name=whole", "train.epochs=4")
            for epochs, n_ranks in enumerate((1, world.size, 2, 3), 1):
                collective = "buffer" if epochs == 3 else "shared"
                more = [f"train.epochs={epochs}", f"collective={collective}", "name=cut"]
                got = seen(world, n_ranks, where, *keys, *more)
            assert got == whole


@ranks(4, virtual=True)
def run_goes_on_with_other_workers_inside_an_epoch(world):
    """As if it had been killed after some steps: a checkpoint is left whenever the one before is durable."""
    keys = [*KEYS, "sync.mode=allreduce", "checkpoint.every_seconds=1e-9", "checkpoint.keep=1000"]
    with folder(world) as where:
        whole, _ = seen(world, 3, where, *keys)
        (run,) = (where / "runs").iterdir()
        files = sorted(p.name for p in (run / "checkpoints").iterdir() if p.name.count("-") > 1)
        inside = files[:-1][:: max(1, len(files) // 3)]
        assert inside, files
        if world.rank == 0:
            shutil.copytree(run / "checkpoints", where / "kept")
        for name, n_ranks in zip(inside, (1, 4, 2), strict=False):
            if world.rank == 0:  # a run that goes on removes what is newer than its own
                shutil.copytree(where / "kept", run / "checkpoints", dirs_exist_ok=True)
                (run / "checkpoints" / "latest").write_text(f"{name}\n")
            again, _ = seen(world, n_ranks, where, *keys, f"checkpoint.resume={run}")
            assert [epoch[0] for epoch in again] == [epoch[0] for epoch in whole], (name, n_ranks)


@ranks(4, full=True)
def threads_and_workers_do_not_change_lenet_on_real_data(world):
    """Blocks of 32 samples, which one thread takes through the first layers in parts and several do at once."""
    if not FASHION.exists():
        raise unittest.SkipTest("no Fashion-MNIST here: apt-get install dataset-fashion-mnist")
    keys = ["model=lenet", "dataset={name: fashion_mnist, limit: 200}", "train.epochs=1", "train.global_batch=128"]
    with folder(world) as where:
        found = {}
        for n_ranks, threads in ((1, 1), (1, 3), (3, 2), (4, 1)):
            how = ["sync.mode=allreduce", f"train.threads={threads}", "train.blocks=4"]
            found[n_ranks, threads] = seen(world, n_ranks, where, KEYS[0], *keys, *how)
        how = ["sync.mode=allreduce", "nn.kernels=blas", "train.blocks=4"]
        plain = [seen(world, n_ranks, where, KEYS[0], *keys, *how) for n_ranks in (1, 3)]
        assert plain[0] == plain[1]
    assert all(run == found[1, 1] for run in found.values()), found
