"""Averages of parameters: the bits of their definition in every mode, and what the test set is evaluated with."""

from itertools import pairwise

import h5py
import numpy as np

from psframe.api import evaluate
from psframe.api.runs import Run
from psframe.config.average import Average
from psframe.optim.average import rate
from psframe.tensors import newest, tensors
from tests.ranks.harness import ranks
from tests.ranks.nodes import own_network
from tests.ranks.training import folder, hashes, train

#: a step is an epoch, and each has its checkpoint
STEPS = ("dataset.samples=48", "train.batch_size=64", "train.epochs=7", "checkpoint.keep=100")
EMA, SWA = "average={name: ema, decay: 0.6}", "average={name: swa, begin_step: 2, every_steps: 2}"
AVERAGES = {EMA: Average(name="ema", decay=0.6), SWA: Average(name="swa", begin_step=2, every_steps=2)}
DATASET = {"name": "synthetic", "shape": [2, 8, 9], "classes": 5, "samples": 203}
DEDICATED, COLOCATED = ("sync.mode=sync_ps", "sync.server=dedicated"), ("sync.mode=sync_ps", "sync.server=colocated")
WAYS = (
    ("sync.mode=allreduce", "collective={name: shared, reducers: all}"),
    ("sync.mode=allreduce", "collective={name: shared, reducers: all, chunk_bytes: 4096}"),
    ("sync.mode=allreduce", "collective={name: buffer, bucket_bytes: 64}"),
    ("sync.mode=allreduce", "collective=object"),
    (*DEDICATED, "collective={name: shared, reducers: server}"),
    (*DEDICATED, "collective=buffer"),
    (*COLOCATED, "collective={name: shared, reducers: cores}"),
    ("sync={mode: sync_ps, server: colocated, servers: 2}", "collective={name: buffer, bucket_bytes: 64}"),
    ("sync={mode: sync_ps, backup_workers: 1}",),
    ("sync={mode: async_ps, staleness: 0}",),
    ("sync.mode=allreduce", "collective=shared", "optimizer={name: 'tests.helpers.own:SignSGD', lr: 0.001}"),
    ("sync.mode=allreduce", "collective=shared", "optimizer=adam", "fault={check_every: 1, on_nan: skip}"),
    (*DEDICATED, "collective=buffer", "optimizer={name: lars, lr: 1.0}"),
)


def saved(run):
    """Return parameters and average of each of a run's checkpoints, in order."""
    found = []
    for path in sorted((run / "checkpoints").glob("*.h5")):
        with h5py.File(path) as file:
            found.append((file["params"][:], file["state"][int(file.attrs["average"]) - 1]))
    return found


def follows(run, average):
    """Assert that each checkpoint's average follows from the one before."""
    every = saved(run)
    assert len(every) == 7
    for step, ((_, before), (params, after)) in enumerate(pairwise(every), 2):
        share = np.float32(rate(average, step))
        mean = params if share == 1 else before + share * (params - before)
        np.testing.assert_array_equal(after, mean, err_msg=f"step {step}")
    return every[-1][1]


@ranks(3, virtual=True)
def averages_follow_from_the_parameters_in_every_mode(world):
    with folder(world) as where:
        for number, way in enumerate(WAYS):
            key, average = list(AVERAGES.items())[number % 2]
            records, _, run = train(world, 3, where, *STEPS, *way, key, f"name=way{number}")
            assert records[-1]["average"] == average.name
            follows(run, average)


@ranks(2, 4, virtual=True)
def averages_change_nothing_else_and_go_on_to_the_same_bits(world):
    ways = (WAYS[0], WAYS[5], WAYS[7]) if world.size > 2 else WAYS[:1]
    for way in ways:
        keys = (*way, "train.epochs=3")
        with folder(world) as where:
            plain = hashes(world, world.size, where, *keys)
            whole, _, run = train(world, world.size, where, *keys, EMA, "name=whole")
            assert [record["params_sha256"] for record in whole] == plain, way
            train(world, world.size, where, *keys, EMA, "name=cut", "train.epochs=1")
            again, _, cut = train(world, world.size, where, *keys, EMA, "name=cut", "checkpoint.resume=auto")
            np.testing.assert_array_equal(saved(cut)[-1], saved(run)[-1])
            assert [record["test_loss"] for record in again] == [record["test_loss"] for record in whole], way


@ranks(3, virtual=True)
def average_goes_back_with_the_parameters(world):
    """To the checkpoint of an epoch; the run's second arena, which it then has, is evaluated."""
    found = []
    for fault in ("fault.on_nan=rollback", "fault={on_nan: rollback, flip: 'gradients:1:15:nan'}"):
        with folder(world) as where:
            records, _, run = train(world, 3, where, *WAYS[0], "train.epochs=3", fault, EMA)
            found.append((saved(run)[-1], [record["test_loss"] for record in records]))
            assert any(record["went_back"] for record in records) == ("flip" in fault)
    np.testing.assert_array_equal(*(state for state, _ in found))
    assert found[0][1] == found[1][1]


@ranks(3, virtual=True)
def test_set_is_evaluated_with_the_average(world):
    """On all ranks; and a network that is loaded, and its tensors, are the average."""
    with folder(world) as where:
        for precision in ("float32", "bf16"):
            keys = (f"train.precision={precision}", SWA)
            for way in (WAYS[0], WAYS[5], ("sync={mode: async_ps, staleness: 0}",)):
                records, _, run = train(world, 3, where, *keys, *way)
                if world.rank == 0:
                    state = saved(run)[-1]
                    assert np.abs(state[0] - state[1]).max() > 1e-4
                    np.testing.assert_array_equal(newest(run).evaluated, state[1])
                    bias = tensors(run)["4.Dense.bias"]
                    assert (state[1] == bias[0]).any()
                    scores = Run(run).evaluate(*evaluate.read(DATASET, "test", (2, 8, 9)))
                    np.testing.assert_allclose(records[-1]["test_loss"], scores["loss"], rtol=1e-5)
                    assert records[-1]["accuracy"] == scores["accuracy"]


@ranks(4, virtual=True)
def averages_reach_every_node(world):
    keys = ("train.reproducible=any_workers", "train.global_batch=24", "train.blocks=8", EMA)
    with folder(world) as where:
        alone = train(world, 1, where, *keys)[0]
        for mode in (("sync.mode=allreduce",), DEDICATED):
            with own_network(world, world.rank % 2):
                found = train(world, 4, where, *keys, "collective={name: hierarchical, reducers: all}", *mode)[0]
            assert [record["params_sha256"] for record in found] == [record["params_sha256"] for record in alone]
            losses = [[record["test_loss"] for record in records] for records in (found, alone)]
            np.testing.assert_allclose(*losses, rtol=1e-6)


@ranks(4, virtual=True)
def averages_are_refused_where_no_step_has_one_update(world):
    with folder(world) as where:
        for mode in ("async_ps", "local_sgd", "easgd", "hogwild", "hybrid"):
            train(world, 4, where, f"sync={mode}", EMA, expect=2)
        train(world, 4, where, "parallel.pipeline=2", EMA, expect=2)
