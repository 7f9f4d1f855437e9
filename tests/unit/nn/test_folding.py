"""Networks without the normalizations that the layer before them can do: what they infer stays the same."""

import numpy as np
import pytest

from psframe.config.registry import load
from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena
from psframe.models import BUILT_IN
from psframe.nn import section
from psframe.nn.activations import Flatten, ReLU
from psframe.nn.base import Pass
from psframe.nn.conv import Conv1d, Conv2d
from psframe.nn.dense import Dense
from psframe.nn.folding import folded
from psframe.nn.network import Network
from psframe.nn.normalization import BatchNorm, GroupNorm
from psframe.nn.pool import GlobalAvgPool
from psframe.nn.residual import Residual, Subsample
from tests.helpers import tiny
from tests.helpers.thinned import thinned

SHAPE = (4, 6, 5)


class OwnConv(Conv2d):
    """What a user made of a convolution, of which nothing is known."""


class OwnBlock(Residual):
    """The same of a shortcut, with layers within it."""


def own():
    return [OwnConv(4, 3), BatchNorm(), Conv2d(4, 1), BatchNorm(), GlobalAvgPool(), Dense(3)]


def own_within():
    return [Conv2d(4, 1), BatchNorm(), Residual([OwnBlock([Conv2d(4, 1), ReLU()])]), GlobalAvgPool(), Dense(3)]


def every_kind():
    return [
        *(Conv2d(8, 3, padding=1), BatchNorm(), ReLU()),
        *(Conv2d(8, 3, padding=2, dilation=2, groups=8, bias=False), BatchNorm(eps=0.1)),
        *(Conv2d(6, 1, groups=2, bias=False), BatchNorm(over="workers"), ReLU()),
        Residual([Conv2d(6, 3, stride=2, padding=1), BatchNorm()], [Conv2d(6, 1, stride=2, bias=False), BatchNorm()]),
        *(Flatten(), Dense(5), BatchNorm(), ReLU(), Dense(3)),
    ]


def nested():
    inner = Residual([Conv2d(4, 3, padding=1, bias=False), BatchNorm(), ReLU(), Conv2d(4, 1), BatchNorm()])
    return [Residual([inner, ReLU(), Conv2d(4, 1), BatchNorm()], [BatchNorm()]), ReLU(), GlobalAvgPool(), Dense(3)]


def apart():
    return [
        *(BatchNorm(), Conv2d(4, 1), ReLU(), BatchNorm(), Conv2d(4, 1), GroupNorm(2)),
        *(Residual([Conv2d(4, 1)], [Subsample(4)]), BatchNorm(), GlobalAvgPool(), Dense(3)),
    ]


def sequences():
    return [Conv1d(6, 3, bias=False), BatchNorm(), ReLU(), Conv1d(6, 3), BatchNorm(), GlobalAvgPool(), Dense(3)]


def bound(layers, shape, n_classes=3, kernels="blas", infers=False):
    """Return a network with random parameters, and with statistics that a training may have left."""
    network, allocator = Network(layers, shape, n_classes), Allocator()
    network.bind(Arena(network.layout, 0, allocator), 4, allocator, kernels, infers=infers)
    rng = np.random.default_rng(0)
    for name, view in network.arena.views(network.arena.params).items():
        view[...] = rng.uniform(0.1, 2, view.shape) if "var" in name else rng.standard_normal(view.shape)
        if name.endswith("weight") and view.ndim > 1:
            view /= np.sqrt(view[0].size)
    return network


CASES = {
    "kinds": (every_kind, SHAPE, 6),
    "nested": (nested, SHAPE, 3),
    "apart": (apart, SHAPE, 0),
    "own": (own, SHAPE, 0),
    "own within": (own_within, SHAPE, 0),
    "sequences": (sequences, (3, 9), 2),
    "residual": (lambda: tiny.residual(SHAPE, 3), SHAPE, 3),
    "group": (lambda: tiny.residual(SHAPE, 3, norm="group"), SHAPE, 0),
    "resnet8": (lambda: load("model", BUILT_IN, "resnet8")((3, 8, 8), 3), (3, 8, 8), 7),
    "mobilenet": (lambda: load("model", BUILT_IN, "mobilenet_small")((3, 16, 16), 3), (3, 16, 16), 15),
    "vgg16_bn": (lambda: load("model", BUILT_IN, "vgg16_bn_small")((3, 32, 32), 3), (3, 32, 32), 13),
}


@pytest.mark.parametrize("case", thinned(CASES, range(len(CASES) - 1)))
def test_folded_network_infers_the_same(case):
    make, shape, n_folded = CASES[case]
    network = bound(make(), shape)
    tensors = network.arena.views(network.arena.params)
    before = {name: tensor.copy() for name, tensor in tensors.items()}
    fewer, of_fewer = folded(network.layers, tensors)
    x = np.random.default_rng(1).standard_normal((4, *network.input_shape), dtype=np.float32)
    wanted = network.forward(x, Pass()).copy()
    if case.startswith("own"):
        assert fewer == network.layers
        assert of_fewer is tensors
        return

    other = bound(fewer, shape, infers=True)
    for name, view in other.arena.views(other.arena.params).items():
        view[...] = of_fewer[name]
    assert of_fewer.keys() == other.params.keys()
    np.testing.assert_allclose(other.forward(x, Pass()), wanted, rtol=1e-4, atol=1e-5 * np.abs(wanted).max())
    assert norms(network) - norms(other) == n_folded
    # what was given is as it was
    np.testing.assert_array_equal(network.forward(x, Pass()), wanted)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, before[name])


def test_variance_below_zero_counts_as_zero():
    network = bound(sequences(), (3, 9))
    tensors = network.arena.views(network.arena.params)
    variance = next(view for name, view in tensors.items() if name.endswith("running_var"))
    x = np.random.default_rng(1).standard_normal((4, *network.input_shape), dtype=np.float32)

    def found(value):
        variance[0] = value
        return network.forward(x, Pass()).copy(), folded(network.layers, tensors)[1]

    (of_zero, folded_zero), (below, folded_below) = found(0), found(-0.001)
    np.testing.assert_array_equal(below, of_zero)
    for name, tensor in folded_zero.items():
        np.testing.assert_array_equal(folded_below[name], tensor)
    assert np.isnan(found(np.nan)[0]).any()


def norms(network):
    return sum(name.endswith("running_mean") for name in network.params)


@pytest.mark.full
def test_inference_without_parts_has_the_same_bits(monkeypatch):
    monkeypatch.setattr(section, "PART_BYTES", 1)
    networks = [bound(tiny.build(SHAPE, 3), SHAPE, kernels="direct", infers=infers) for infers in (False, True)]
    assert [network.sections[0].part for network in networks] == [2, 4]
    x = np.random.default_rng(1).standard_normal((4, *networks[0].input_shape), dtype=np.float32)
    np.testing.assert_array_equal(*(network.forward(x, Pass()) for network in networks))
