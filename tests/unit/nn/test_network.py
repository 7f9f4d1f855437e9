"""Arena and network: views without copies, the same initial values everywhere, plans that hold what they promise."""

from math import prod

import numpy as np
import pytest

from psframe.config.registry import load
from psframe.errors import UserError
from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena, Layout, described
from psframe.models import BUILT_IN
from psframe.nn.activations import Flatten
from psframe.nn.base import Param, Pass
from psframe.nn.dense import Dense
from psframe.nn.initial import initialize
from psframe.nn.losses import Targets
from psframe.nn.network import Network
from tests.helpers.thinned import thinned

INPUTS = {
    "lenet": (1, 28, 28),
    "cifar_quick": (3, 32, 32),
    "har_cnn": (9, 128),
    "alexnet": (3, 64, 64),
    "alexnet_small": (3, 32, 32),
    "vgg16": (3, 32, 32),
    "vgg16_small": (3, 32, 32),
    "vgg16_bn_small": (3, 32, 32),
    "resnet8": (3, 32, 32),
    "resnet18": (3, 32, 32),
    "resnet20": (3, 32, 32),
    "mobilenet_small": (3, 32, 32),
    "har_resnet": (9, 128),
}
#: the others have their layers, only more of them; their fast kernels are compiled, in seconds a shape
SMALL = thinned(("lenet", "cifar_quick", "har_cnn", "alexnet_small"), (0,))


def network(name, max_batch=8, dtype="float32", kernels="direct"):
    net = Network(load("model", BUILT_IN, name)(INPUTS[name], 10), INPUTS[name], 10)
    allocator = Allocator()
    net.bind(Arena(net.layout, 1, allocator, dtype), max_batch, allocator, kernels)
    initialize(net, 0)
    return net, allocator


def images(name, n):
    channels, *rest = INPUTS[name]
    rest = [1] * (2 - len(rest)) + list(rest)
    return np.random.default_rng(n).standard_normal((n, *rest, channels)).astype(np.float32)


def test_tensors_are_views_on_cache_lines_of_their_own():
    layout = Layout({"a": Param((3, 5), (1, 0)), "b": Param((7,), (0,)), "c": Param((2, 3, 4, 5), (2, 3, 1, 0))})
    arena = Arena(layout, 2, Allocator())
    assert layout.n_params == 15 + 7 + 120
    assert arena.state.shape == (2, layout.size)
    for vector in (arena.params, arena.grads, *arena.state):
        assert vector.dtype == np.float32
        assert vector.ctypes.data % 64 == 0
    views = arena.views(arena.params)
    for name, slot in layout.slots.items():
        assert views[name].shape == slot.shape
        assert views[name].base is not None
        assert slot.start % 16 == 0
        views[name][...] = 1
    assert arena.params.sum() == layout.n_params
    views["a"][2, 4] = 9
    assert arena.params[4 * 3 + 2] == 9, "axis 1 is the outer one in memory"


def test_layouts_that_differ_are_described_differently():
    shapes = [(3, 5), (5, 3), (15,)]
    described = {Layout({"a": Param(s, tuple(range(len(s))))}).describe() for s in shapes}
    assert len(described | {Layout({"a": Param((3, 5), (1, 0))}).describe()}) == 4


@pytest.mark.parametrize("name", SMALL)
def test_description_is_the_layout(name):
    layout = network(name)[0].layout
    assert described(layout.describe()) == layout.slots
    for wrong in ("", "a [2] [1] at 0", "a [2, 3] [0] at 0", "a [2] [0]", layout.describe() + "; "):
        with pytest.raises(ValueError, match="is no place of a tensor"):
            described(wrong)


@pytest.mark.parametrize("name", BUILT_IN)
def test_zoo_of_models(name):
    net, _ = network(name, kernels="blas")
    x = images(name, 8)
    labels = np.arange(8)
    if net.keep_statistics:  # of the batch, which running ones do not know yet
        loss, n_correct = net.gradients(x, Targets(labels), Pass(True, 0, 0, labels))
    else:
        loss, n_correct = net.evaluate(x, labels)
    assert 8 * 1.5 < loss < 8 * 6, "an untrained network guesses"
    assert 0 <= n_correct <= 8
    given = {f"{k}.{layer.kind}.{name}" for k, layer in net.active for name in layer.initial(0)}
    for index, (tensor, view) in enumerate(net.arena.views(net.arena.params).items()):
        bound = net.params[tensor].bound
        if tensor in given:
            continue
        assert np.abs(view).max() <= bound
        if bound and view.size > 100:
            assert np.isclose(view.std(), bound / 3**0.5, rtol=0.2), index


#: number of the last weights with Xavier's variance: all of Caffe's LeNet, and of others those that no ReLU follows
XAVIER = {"lenet": 4, "cifar_quick": 2}


@pytest.mark.parametrize("name", BUILT_IN)
def test_weights_before_a_relu_begin_with_twice_the_variance(name):
    """He's: 2 over the inputs of an output; other weights have 1 over these, and nothing else is drawn."""
    params = Network(load("model", BUILT_IN, name)(INPUTS[name], 10), INPUTS[name], 10).params
    variances = [p.bound**2 / 3 * prod(p.shape[1:]) for p in params.values() if len(p.shape) > 1]
    n = XAVIER.get(name, 1)
    assert variances == pytest.approx([2] * (len(variances) - n) + [1] * n)
    assert not any(p.bound for p in params.values() if len(p.shape) == 1)


@pytest.mark.parametrize("name", SMALL)
def test_gradients_are_sums_over_samples(name):
    """So those of a batch are those of its parts, together; that is what workers rely on."""
    net, _ = network(name)
    x, labels = images(name, 8), np.arange(8) % 5
    samples = np.arange(8)

    def gradients(part):
        loss, n_correct = net.gradients(x[part], labels[part], Pass(True, 0, 0, samples[part]))
        return loss, n_correct, net.arena.grads.copy()

    whole, parts = gradients(slice(0, 8)), [gradients(slice(*p)) for p in ((0, 3), (3, 3), (3, 8))]
    for i in range(3):
        np.testing.assert_allclose(sum(p[i] for p in parts), whole[i], rtol=1e-3, atol=1e-4)
    assert whole[0] > 0
    assert (parts[1][2] == 0).all()
    assert parts[1][0] == 0


@pytest.mark.parametrize("name", SMALL)
def test_pass_has_the_same_bits_every_time(name):
    x, labels, samples = images(name, 5), np.arange(5), np.arange(5)
    found = set()
    for _ in range(2):
        net, _ = network(name, max_batch=5)
        for _ in range(2):
            net.gradients(x, labels, Pass(True, 1, 2, samples))
            found.add(net.arena.grads.tobytes())
    assert len(found) == 1


def test_allocation_is_what_was_counted():
    _, allocator = network("lenet", max_batch=3)
    size = allocator.bytes_by_place
    assert size["parameters"] == size["gradients"] == size["optimizer"] >= 431_080 * 4
    cols = 24 * 24 * 25 + 8 * 8 * 500
    assert size["activations"] > 3 * cols * 4


@pytest.mark.parametrize(
    ("layers", "word"),
    [
        ([], "list of layers"),
        ([Flatten(), 3], "list of layers, got int as layer 1, which has no setup; give"),
        ([Flatten(), Dense(9)], r"\(10,\), got \(9,\)"),
    ],
)
def test_model_that_is_none_is_told(layers, word):
    with pytest.raises(UserError, match=word):
        Network(layers, (1, 4, 4), 10)


def test_allocations_are_aligned_and_zero():
    allocator = Allocator()
    for shape in (0, 1, 3, (5, 7), (2, 0)):
        array = allocator.zeros(shape, "float32", "exchange")
        assert array.ctypes.data % 64 == 0 or not array.size
        assert not array.any()
        assert array.flags.c_contiguous
        assert array.flags.writeable
    assert allocator.bytes_by_place == {"exchange": 0 + 64 + 64 + 192 + 0}  # whole cache lines
