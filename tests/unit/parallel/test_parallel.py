"""Schedules, cuts and grids of networks across ranks."""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe.config import schema
from psframe.errors import UserError
from psframe.nn import subnormal
from psframe.nn.activations import Flatten
from psframe.nn.base import BaseLayer
from psframe.nn.conv import Conv2d
from psframe.nn.dense import Dense
from psframe.nn.network import Network
from psframe.nn.vectors import host
from psframe.train.compute.parallel import cut, grid, partition
from psframe.train.compute.parallel.schedule import bubble, most_kept, turns
from psframe.train.compute.parallel.split import Split, split
from psframe.train.compute.parallel.split import check as split_judge
from tests.helpers import tiny

KINDS = ("1f1b", "gpipe")
SIZES = {"kind": st.sampled_from(KINDS), "n_micro": st.integers(0, 20), "n_stages": st.integers(1, 8)}


@given(**SIZES)
def test_stages_pass_every_micro_batch_once_each_way_in_order(kind, n_micro, n_stages):
    for stage in range(n_stages):
        done = turns(kind, n_micro, n_stages, stage)
        for direction in ("forward", "backward"):
            assert [k for way, k in done if way == direction] == list(range(n_micro))
        kept = most = 0
        for way, k in done:
            assert way == "forward" or ("forward", k) in done[: done.index(("backward", k))]
            kept += 1 if way == "forward" else -1
            most = max(most, kept)
        assert most == (most_kept(kind, n_micro, n_stages, stage) if n_micro else 0)


def finished(kind, n_micro, n_stages, forward_s, backward_s, depth=None):
    """Return when each stage ends if every turn waits for what it needs; AssertionError where all wait for ever."""
    left = [turns(kind, n_micro, n_stages, stage) for stage in range(n_stages)]
    ended, now = {}, [0.0] * n_stages
    while any(left):
        moved = False
        for stage, of_stage in enumerate(left):
            while of_stage:
                way, k = of_stage[0]
                needs = (way, k, stage - 1 if way == "forward" else stage + 1)
                if 0 <= needs[2] < n_stages and needs not in ended:
                    break
                begin = max(now[stage], ended.get(needs, 0.0))
                now[stage] = ended[way, k, stage] = begin + (forward_s if way == "forward" else backward_s)
                del of_stage[0]
                moved = True
        assert moved, "all wait"
    return now


@given(**SIZES, backward=st.sampled_from([1.0, 2.0, 3.0]))
def test_schedules_take_as_long_as_their_formula_says(kind, n_micro, n_stages, backward):
    if not n_micro:
        return
    whole = max(finished(kind, n_micro, n_stages, 1.0, backward))
    assert whole == (n_micro + n_stages - 1) * (1 + backward)
    assert np.isclose(1 - n_micro * (1 + backward) / whole, bubble(n_micro, n_stages))


@given(costs=st.lists(st.integers(0, 50), min_size=1, max_size=9), n_stages=st.integers(1, 9))
def test_cuts_are_as_balanced_as_any(costs, n_stages):
    n_stages = min(n_stages, len(costs))
    found = partition.balanced(costs, n_stages)
    assert found[0] == 0
    assert found[-1] == len(costs)
    assert all(a < b for a, b in pairwise(found))
    assert len(found) == n_stages + 1

    def largest(cuts):
        return max(sum(costs[a:b]) for a, b in pairwise(cuts))

    every = ([0, *inner, len(costs)] for inner in combinations(range(1, len(costs)), n_stages - 1))
    assert largest(found) == min(map(largest, every))


@pytest.mark.parametrize("n_stages", [1, 2, 3, 4])
@pytest.mark.parametrize("kernels", ["direct", "blas"])
def test_cut_is_found_that_leaves_no_stage_without_a_layer(n_stages, kernels):
    def make(own):
        return Network(tiny.build((2, 8, 9), 5, dropout=0.2), (2, 8, 9), 5, own)

    found = cut.found(make, n_stages, 3, kernels)
    assert found[0] == 0
    assert found[-1] == len(make(slice(None)).active)
    assert sorted(set(found)) == found
    assert len(found) == n_stages + 1


@pytest.mark.skipif(not subnormal.AVAILABLE or not host().fma, reason="bf16 needs an x86 CPU with AVX2")
def test_stages_are_measured_with_the_numbers_that_they_pass_on():
    """In bfloat16 a stage has no others: its kernels would read beyond arrays of another type's size."""
    taken = []

    class Sees(BaseLayer):
        bfloat16 = "arrays"

        def setup(self, input_shape, index):
            return input_shape

        def forward(self, x, state):
            taken.append(x.dtype)
            return x

        def backward(self, x, dy, state, need_dx):
            taken.append(dy.dtype)
            return dy

    def make(own):
        layers = [Conv2d(3, 3), Sees(), Sees(), Flatten(), Dense(5)]
        return Network(layers, (2, 8, 9), 5, own, precision="bf16")

    cut.found(make, 3, 3, "blas")
    assert set(taken) == {np.dtype(np.uint16)}


def test_stage_without_a_layer_is_refused():
    network = Network(tiny.build((2, 8, 9), 5), (2, 8, 9), 5)
    cut.check(network, len(network.active))
    with pytest.raises(UserError, match=r"got 5 stages for a model of 4 layer.*give parallel.pipeline=4 or less"):
        cut.check(network, 5)


def resolved(**sections):
    return schema.resolve({"name": "x", "model": "lenet", "dataset": "digits", **sections})


@given(n_ranks=st.integers(1, 64), pipeline=st.integers(1, 64), data=st.integers(1, 64) | st.just("auto"))
def test_grid_is_of_all_ranks_or_is_refused(n_ranks, pipeline, data):
    asked = resolved(parallel={"pipeline": pipeline, "data": data})
    if n_ranks % pipeline == 0 and data in ("auto", n_ranks // pipeline):
        grid.check(asked.parallel, n_ranks)
        return
    with pytest.raises(
        UserError, match=r"parallel.* must .* number of ranks, \d+, got .*; give .*, or start (\d+ or )?\d+ ranks"
    ):
        grid.check(asked.parallel, n_ranks)


def test_pipeline_has_no_server_unless_one_is_asked_for():
    assert resolved(parallel={"pipeline": 2}).sync == {"mode": "allreduce"}
    assert resolved(parallel={"pipeline": 1}).sync == {"mode": "sync_ps"}


def test_stages_have_the_tensors_of_the_whole_between_them():
    def network(own):
        return Network(tiny.build((2, 8, 9), 5), (2, 8, 9), 5, own)

    whole, parts = network(slice(None)), [network(slice(0, 2)), network(slice(2, 4))]
    assert [name for part in parts for name in part.layout.slots] == list(whole.layout.slots)
    assert {part.whole.describe() for part in parts} == {whole.layout.describe()}


@pytest.mark.parametrize("n_shards", [2, 3, 4])
def test_shards_have_the_rows_of_the_whole_between_them(n_shards):
    def network(shard):
        return Network(split(tiny.build((2, 8, 9), 5, width=6), n_shards, shard), (2, 8, 9), 5)

    whole = Network(tiny.build((2, 8, 9), 5, width=6), (2, 8, 9), 5)
    shards = [network(shard) for shard in range(n_shards)]
    assert {shard.whole.describe() for shard in shards} == {whole.whole.describe()}
    for name, param in whole.params.items():
        number = np.arange(np.prod(param.shape)).reshape(param.shape)
        rows = [shard.params[name].rows(number) for shard in shards]
        assert (np.concatenate(rows) == number).all()
        assert [of.shape for of in rows] == [shard.params[name].shape for shard in shards]


def test_model_without_a_layer_to_split_is_refused():
    network = Network([Flatten()], (4, 1, 1), 4)
    split_judge(network, 1)
    with pytest.raises(UserError, match=r"must have a layer to split.*got 2 shards"):
        split_judge(network, 2)


def test_layer_with_fewer_channels_than_shards_is_left_whole():
    layers = split(tiny.build((2, 8, 9), 5, width=3), 4, 0)
    assert [isinstance(layer, Split) for layer in layers] == [False, False, False, False, True]


def test_stage_without_parameters_has_zeros_to_exchange():
    stage = Network([Flatten(), Dense(4)], (4, 1, 1), 4, slice(0, 1))
    assert not stage.params
    assert stage.layout.size == stage.layout.n_trained > 0
    assert stage.layout.n_params == 0
