"""Networks that are cut across ranks: the bits of one process, whatever the cut."""

import json
from unittest import mock

import numpy as np

from psframe.bench import pipeline
from psframe.cluster.joining import join
from psframe.tensors import tensors
from tests.helpers.suite import IS_FULL
from tests.ranks.every_collective import COLLECTIVES
from tests.ranks.harness import ranks
from tests.ranks.nodes import own_network
from tests.ranks.torch_models import ROW, need_torch
from tests.ranks.training import TINY, folder, hashes, key, train

MODES = ("allreduce", "{mode: sync_ps, server: colocated}")
OPTIMIZERS = ("{name: sgd, lr: 0.02, momentum: 0.5, weight_decay: 0.001}", "{name: adam, lr: 0.001}")


@ranks(2, 3, 4, 6)
def cuts_have_the_bits_of_one_process(world):
    draw = np.random.default_rng(world.size)
    for trial in range(4 if IS_FULL else 2):
        n_stages = int(draw.choice([s for s in (2, 3, 4) if world.size % s == 0]))
        n_replicas, n_micro = world.size // n_stages, int(draw.integers(1, 10))
        asked = {"micro_batches": n_micro}
        cut = {
            **asked,
            "pipeline": n_stages,
            "schedule": str(draw.choice(["1f1b", "gpipe"])),
            "recompute": bool(draw.integers(2)),
        }
        keys = [
            f"model={{name: 'tests.helpers.nets:random', seed: {100 * world.size + trial}}}",
            f"sync={draw.choice(MODES)}",
            f"collective={draw.choice(COLLECTIVES)}",
            f"optimizer={draw.choice(OPTIMIZERS)}",
            f"train.batch_size={draw.integers(1, 40)}",
            # the direct ones are compiled, for each shape
            f"nn.kernels={draw.choice(['direct', 'blas']) if (IS_FULL and trial < 2) or world.size == 3 else 'blas'}",
        ]
        with folder(world) as where:
            whole, whole_steps, _ = train(world, n_replicas, where, *keys, key(asked), "name=whole")
            parts, steps, _ = train(world, world.size, where, *keys, key(cut), "name=parts")
            assert [r["params_sha256"] for r in parts] == [r["params_sha256"] for r in whole], (cut, keys)
            assert [s["loss"] for s in steps] == [s["loss"] for s in whole_steps], (cut, keys)
            for mine, one in zip(parts, whole, strict=True):
                assert np.isclose(mine["test_loss"], one["test_loss"], rtol=1e-6)
                assert mine["accuracy"] == one["accuracy"]
                assert 0 < mine["bubble"] < 1


@ranks(1, 2, virtual=True)
def micro_batches_change_no_more_than_the_order_of_sums(world):
    for kernels in ("direct", "blas"):
        with folder(world) as where:
            keys = ["sync=allreduce", f"nn.kernels={kernels}"]
            losses = [
                [r["loss"] for r in train(world, world.size, where, *keys, key({"micro_batches": n}))[0]]
                for n in (1, 3, 8)
            ]
            assert np.allclose(losses, losses[0], rtol=1e-5)


@ranks(4, virtual=True)
def run_is_continued_on_any_other_cut(world):
    for optimizer in OPTIMIZERS:
        with folder(world) as where:
            keys = [f"optimizer={optimizer}", "sync=allreduce", "train.epochs=3"]
            cuts = [(1, {"micro_batches": 4}), (4, {"micro_batches": 4, "pipeline": 4})]
            cuts.insert(1, (2, {"micro_batches": 4, "pipeline": 2}))
            whole = hashes(world, 1, where, *keys, key({"micro_batches": 4}), "name=whole")
            for epoch, (n, cut) in enumerate(cuts, 1):
                more = ["name=cut", f"train.epochs={epoch}", "checkpoint.resume=auto"]
                records, _, _ = train(world, n, where, *keys, key(cut), *more)
            assert [r["params_sha256"] for r in records] == whole


@ranks(4, virtual=True)
def stages_on_other_nodes_are_reached_over_mpi(world):
    """Network namespaces: a cut between the nodes, and one inside each; and replicas with a node each."""
    with folder(world) as where:
        one = hashes(world, 1, where, "sync=allreduce", key({"micro_batches": 4}))
        two = hashes(world, 2, where, "sync=allreduce", "train.batch_size=4", key({"micro_batches": 2}))
        with own_network(world, world.rank // 2):
            for schedule in ("1f1b", "gpipe"):
                cut = key({"micro_batches": 4, "pipeline": 4, "schedule": schedule})
                records, _, _ = train(world, 4, where, "sync=allreduce", cut)
                assert [r["params_sha256"] for r in records] == one
                assert records[-1]["n_nodes"] == 2
            cut = key({"micro_batches": 2, "pipeline": 2})
            for mode in MODES:
                for collective in ("hierarchical", "buffer"):
                    more = [f"sync={mode}", f"collective={collective}", "train.batch_size=4"]
                    records, _, _ = train(world, 4, where, *more, cut)
                    assert [r["params_sha256"] for r in records] == two, more


@ranks(3, full=True)
def torch_sequential_is_cut_between_its_parts(world):
    """With statistics of every micro-batch, whose mean is taken."""
    need_torch()
    with folder(world) as where:
        keys = [ROW, "sync=allreduce", "train.threads=1"]
        one = hashes(world, 1, where, *keys, key({"micro_batches": 3}))
        for more in ({}, {"schedule": "gpipe"}, {"recompute": True}):
            assert hashes(world, 3, where, *keys, key({"micro_batches": 3, "pipeline": 3, **more})) == one, more


@ranks(3, virtual=True)
def trace_shows_the_schedule(world):
    with folder(world) as where:
        _, _, run = train(world, 3, where, "sync=allreduce", "record.trace=2", key({"pipeline": 3, "micro_batches": 5}))
        events = [e for e in json.loads((run / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
        spans = {}
        for event in events:
            words = event["name"].split()
            if len(words) == 2 and words[0] in ("forward", "backward"):
                ends = (event["ts"], event["ts"] + event["dur"])
                spans.setdefault((words[0], int(words[1]), event["pid"]), []).append(ends)
        assert len(spans) == 2 * 5 * 3
        for (way, number, rank), found in spans.items():
            assert len(found) == 2 * 2  # turns of two epochs
            before = spans.get((way, number, rank - 1 if way == "forward" else rank + 1))
            for mine, others in zip(found, before or found, strict=True):
                assert before is None or mine[1] > others[0], (way, number, rank)  # not before the other one began
        assert any(event["name"] == "stall" for event in events)


@ranks(2, 3, 4, virtual=True)
def shards_learn_what_one_process_does(world):
    """With every stage, replica and kernel; but for the order of sums over shards, and to the bit among grids."""
    for trial, n_shards in enumerate(n for n in (2, 3, 4) if world.size % n == 0):
        random_net = f"{{name: 'tests.helpers.nets:random', seed: {7 + trial}}}"
        for kernels, model in (("blas", random_net), ("direct", "{name: 'tests.helpers.tiny:build', dropout: 0.2}")):
            if kernels == "direct" and n_shards != 2 and not IS_FULL:
                continue  # every shard's kernels would have to be compiled
            optimizer = "optimizer={name: sgd, lr: 0.02, momentum: 0.5}"
            keys = ["sync=allreduce", optimizer, f"nn.kernels={kernels}", f"model={model}"]
            rest = world.size // n_shards
            with folder(world) as where:
                one, _, run = train(world, 1, where, *keys, key({"micro_batches": 3}), "name=one")
                cut = {"micro_batches": 3, "model": n_shards, "data": 1}
                shards, _, of_shards = train(world, n_shards, where, *keys, key(cut), "name=shards")
                for name, tensor in tensors(run).items():
                    assert np.allclose(tensor, tensors(of_shards)[name], rtol=1e-5, atol=1e-6), (n_shards, name)
                assert np.allclose([r["loss"] for r in one], [r["loss"] for r in shards], rtol=1e-5)
                assert [r["accuracy"] for r in one] == [r["accuracy"] for r in shards]
                if rest > 1:
                    cut = {"micro_batches": 3, "model": n_shards, "pipeline": rest}
                    grid, _, _ = train(world, world.size, where, *keys, key(cut), "name=grid")
                    assert [r["params_sha256"] for r in grid] == [r["params_sha256"] for r in shards]


@ranks(4, full=True)
def replicas_of_shards_exchange_gradients_over_every_collective(world):
    with folder(world) as where:
        found = set()
        for mode in MODES:
            for collective in COLLECTIVES:
                keys = [f"sync={mode}", f"collective={collective}", key({"model": 2})]
                records, _, run = train(world, 4, where, *keys, "name=cut")
                found.add(tuple(r["params_sha256"] for r in records))
        assert len(found) == 1, found
        _, _, of_replicas = train(world, 2, where, "sync=allreduce", "name=whole")
        for name, tensor in tensors(of_replicas).items():
            assert np.allclose(tensor, tensors(run)[name], rtol=1e-4, atol=1e-5), name


@ranks(4, virtual=True)
def run_of_shards_is_continued_on_other_grids(world):
    with folder(world) as where:
        kernels = f"nn.kernels={'direct' if IS_FULL else 'blas'}"  # the direct ones are compiled, for each cut
        keys = ["optimizer={name: adam, lr: 0.001}", kernels, "sync=allreduce", "name=cut", "checkpoint.resume=auto"]
        grids = [(2, {"model": 2}), (4, {"model": 2, "pipeline": 2}), (4, {"model": 4}), (1, {})]
        grids.append((2, {"model": 2, "convolutions": "data"}))
        for epoch, (n, cut) in enumerate(grids, 1):
            records, _, _ = train(world, n, where, *keys, key({"micro_batches": 2, **cut}), f"train.epochs={epoch}")
        whole, _, _ = train(world, 1, where, *keys[:3], key({"micro_batches": 2}), "train.epochs=5", "name=whole")
        assert np.allclose([r["loss"] for r in records], [r["loss"] for r in whole], rtol=1e-3)


@ranks(4)
def shards_on_two_nodes_are_refused(world):
    with folder(world) as where, own_network(world, world.rank % 2):
        train(world, 4, where, key({"model": 4}), expect=2)


def paced(world, now, n_steps):
    """Return how a bench builds runs: they take seconds of the clock ``now`` by rank, and more from turn to turn."""
    built = pipeline._built

    def build(cluster, judged):
        run, done = built(cluster, judged), []
        gradients, step = run.work.gradients, run.sync.step

        def slow_gradients(*given):
            if len(done) % n_steps == 0:
                assert run.work.waited_s == 0, "a turn begins with the seconds waited in another"
            done.append(gradients(*given))
            turn = 1 + (len(done) - 1) // n_steps
            run.pace_s = (1 + world.rank) * turn if cluster.n_ranks > 1 else 24 * world.size
            now[0] += 4 * run.pace_s
            for number, channel in enumerate(getattr(run.work, "waits", ())):
                channel.waited_s = 0 if number else n_steps * run.pace_s * turn

        def slow_step(*given):
            step(*given)
            now[0] += run.pace_s

        run.work.gradients, run.sync.step = slow_gradients, slow_step
        return run

    return build


@ranks(2, 4)
def bench_compares_a_pipeline_with_one_process(world):
    """A turn takes as long as on the slowest rank, and of four turns the first is not counted."""
    now = [0.0]
    with folder(world) as where:
        path, found = where / "config.yaml", where / "found.json"
        if world.rank == 0:
            path.write_text(TINY)
        world.Barrier()
        asked = {"pipeline": 2, "micro_batches": 3, "schedule": "gpipe"}
        words = [str(path), key(asked), "sync=allreduce", "nn.kernels=blas", "--repetitions=3", "--steps=2"]
        with mock.patch.multiple(pipeline, perf_counter=lambda: now[0], _built=paced(world, now, 2)):
            status = pipeline.main(join(world), [*words, f"--json={found}"])
        assert world.allgather(status) == [0] * world.size
        report = json.loads(found.read_text())
    step_s = {
        "pipeline": {"median": 15 * world.size, "low": 12.5 * world.size, "high": 17.5 * world.size},
        "one process": dict.fromkeys(("median", "low", "high"), 120 * world.size),
    }
    assert report == {
        **{"stages": 2, "replicas": world.size // 2, "micro_batches": 3, "schedule": "gpipe", "batch_size": 8},
        "cuts": report["cuts"],
        "step_s": step_s,
        "speedup": {"median": 8, "low": 7, "high": 10},  # 120 by 10, by 15 and by 20
        "limit": 1.5,  # 3 micro-batches take a stage 4 turns
        "bubble": {"median": 0.75, "low": 0.625, "high": 0.875},
        "bubble_formula": 0.25,
    }
    shown = " ".join(pipeline.table(report).split())
    assert "faster by 8.00 (7.00 to 10.00); by the formula at most 1.50" in shown
    assert "idle 75.0 (62.5 to 87.5) %; by the formula 25.0 %" in shown
    for name, middle in (("pipeline", 15 * world.size), ("one process", 120 * world.size)):
        assert f"a step, {name} {middle:.3f} (" in shown
