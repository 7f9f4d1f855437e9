"""Hooks of psframe for DDP: the bits of DDP without one, state that can be saved, and compression that learns."""

import json

import pytest

from tests.helpers import torchrun
from tests.helpers.thinned import thinned

pytest.importorskip("torch", reason="PyTorch, whose backend this is, is not installed: pip install -e .[torch]")

SCRIPT = "tests/torch/scripts/hooks.py"


@pytest.fixture(scope="module")
def told():
    """What the script says at 3 ranks, where a mean is no power of two."""
    ended = torchrun.forked(3, [SCRIPT], 900)
    assert ended.status == 0, ended
    return json.loads(ended.out.splitlines()[-1])


@pytest.mark.parametrize("optimizer", thinned(["sgd", "adamw"], (1,)))
def test_fused_hook_has_the_bits_of_ddp(told, optimizer):
    plain, fused = told[f"{optimizer} plain"], told[f"{optimizer} fused"]
    assert fused["losses"] == plain["losses"]
    assert fused["parameters"] == plain["parameters"]
    assert len(set(fused["parameters"])) == 1


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_state_of_the_fused_hook_is_that_of_the_optimizer(told, optimizer):
    assert told[f"{optimizer} fused"]["state"] == told[f"{optimizer} plain"]["state"]
    assert told[f"{optimizer} fused"]["continued"] == told[f"{optimizer} plain"]["continued"]


def test_mistakes_are_refused_in_a_sentence(told):
    assert "psframe group of one node" in told["stateful"]
    assert "nosuch" in told["codec"]


@pytest.mark.parametrize("codec", ["fp16", "bf16", "onebit", "topk"])
def test_compressed_hook_learns_and_all_ranks_have_the_same(told, codec):
    losses = told[codec]["losses"]
    assert losses[-1] < losses[0]
    assert len(set(told[codec]["parameters"])) == 1


@pytest.mark.parametrize(("codec", "n_sent"), [("fp16", 64), ("bf16", 64), ("onebit", 64), ("topk", 13)])
def test_compressed_hook_gives_the_mean_of_the_ranks_gradients(told, codec, n_sent):
    """Of 1, 2 and 3, and of their negatives; of equal magnitudes topk sends the first fifth."""
    mean = ([2.0, -2.0] * 32)[:n_sent] + [0.0] * (64 - n_sent)
    assert told[codec]["mean"] == [mean] * 3
