"""Shortcuts: gradients by differences and against PyTorch, and what they refuse."""

import numpy as np
import pytest

from psframe.errors import UserError
from psframe.nn.activations import Dropout, ReLU
from psframe.nn.base import Pass
from psframe.nn.conv import Conv2d
from psframe.nn.dense import Dense
from psframe.nn.network import Network
from psframe.nn.normalization import BatchNorm, LayerNorm
from psframe.nn.pool import GlobalAvgPool
from psframe.nn.residual import Residual, Subsample
from psframe.nn.smooth import GELU, LeakyReLU, SiLU
from tests.helpers.layers import Bench

pytest.importorskip("torch", reason="PyTorch, which the layers are compared with, is not installed")
from tests.helpers.torch_twin import Twins


def residual():
    return [Residual([Conv2d(2, 1, bias=False), BatchNorm()]), ReLU()]


CASES = {
    "identity": lambda: [Residual([Conv2d(2, 3, padding=1), ReLU(), Conv2d(2, 3, padding=1)])],
    # the body's last layer overwrites the gradient that it is given
    "body-ends-in-relu": lambda: [Residual([Conv2d(2, 1), ReLU()])],
    "body-ends-in-norm-and-relu": lambda: [Residual([Conv2d(2, 1, bias=False), BatchNorm(), ReLU()]), ReLU()],
    "norm-and-relu": lambda: [Residual([LayerNorm(), ReLU()])],
    "relu-behind": lambda: [Residual([Conv2d(2, 3, padding=1, bias=False), BatchNorm()]), ReLU()],
    "projection": lambda: [
        Residual([Conv2d(5, 3, stride=2, padding=1)], [Conv2d(5, 1, stride=2, bias=False), BatchNorm()])
    ],
    "subsample": lambda: [Residual([Conv2d(5, 3, stride=2, padding=1), LayerNorm()], [Subsample(5, 2)]), ReLU()],
    "nested": lambda: [Residual([Conv2d(4, 1), Residual([GELU(), Conv2d(4, 1)]), SiLU()], [Conv2d(4, 1), ReLU()])],
    "two": lambda: [*residual(), *residual()],
    "rows": lambda: [GlobalAvgPool(), Residual([Dense(2), LeakyReLU(0.2)])],
    "gelu": lambda: [GELU()],
    "silu": lambda: [SiLU()],
    "leaky": lambda: [LeakyReLU()],
    "global": lambda: [GlobalAvgPool()],
}


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("case", CASES)
def test_residual_is_that_of_pytorch(case, n):
    if n == 1 and case in ("body-ends-in-norm-and-relu", "relu-behind", "two"):
        n = 2
    x = np.random.default_rng(n).standard_normal((n, 5, 4, 2))
    Twins(CASES[case](), x.shape[1:], n, dtype="float64", kernels="blas").check(x, 1e-8)


def test_threads_change_no_bit_of_a_residual():
    x = np.random.default_rng(0).standard_normal((5, 6, 5, 2), dtype=np.float32)
    results = []
    for n_threads in (1, 3):
        bench = Bench(CASES["two"](), x.shape[1:], 6, "float32", "blas", n_threads)
        y = bench.forward(x, Pass(train=True)).copy()
        results.append([y, bench.backward(y + 1), *bench.grads])
    for one, two in zip(*results, strict=True):
        np.testing.assert_array_equal(one, two)


def test_residual_writes_its_first_input_gradient_only_if_asked():
    bench = Bench(CASES["identity"](), (4, 4, 2), 2, kernels="blas")
    x = np.ones((2, 4, 4, 2))
    bench.forward(x)
    assert bench.layers[0].backward(x, np.ones((2, 4, 4, 2)), Pass(), False) is None


def test_dropout_within_is_not_dropout_without():
    """Layers within a layer draw from streams of their own."""
    x, state = np.ones((1, 64)), Pass(train=True, samples=np.arange(1))
    drawn = []
    for layers in ([Dropout(0.5)], [Residual([Dropout(0.5)])], [Residual([LeakyReLU(), Dropout(0.5)])]):
        bench = Bench(layers, (64,), 1)
        drawn.append(bench.forward(x, state) - (0 if len(drawn) == 0 else 1))
    assert (drawn[0] != drawn[1]).any()
    assert (drawn[1] != drawn[2]).any()


def test_tensors_are_named_by_their_way():
    network = Network([Conv2d(4, 1), Residual([Conv2d(4, 1)], [Conv2d(4, 1)]), GlobalAvgPool(), Dense(3)], (2, 3, 3), 3)
    names = ["1.Residual.0.Conv2d.weight", "1.Residual.1.Conv2d.bias", "3.Dense.weight"]
    assert set(names) < set(network.whole.slots)
    assert network.begins[1] == network.whole.slots["1.Residual.0.Conv2d.weight"].start


def test_networks_that_differ_within_a_residual_differ():
    texts = []
    for layer in (Conv2d(2, 1), Conv2d(2, 3, padding=1), Residual([Conv2d(2, 1)])):
        network = Network([Residual([layer]), GlobalAvgPool(), Dense(2)], (2, 3, 3), 2)
        texts.append(network.describe()[0])
    assert len(set(texts)) == 3


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Residual([]), "body of Residual.*got one without any"),
        (lambda: Residual(Dense(2)), "body of Residual.*list of layers, got Dense; give one"),
        (lambda: Residual([Dense(2)], 3), "shortcut of Residual.*list of layers, got int"),
        (lambda: Residual([Conv2d(3, 1)]), r"layer 1, Residual.*one shape.*got \(4, 4, 3\) and \(4, 4, 2\); give"),
        (lambda: Residual([Conv2d(2, 9)]), "layer 0 of layer 1's body, Conv2d"),
        (lambda: Residual([Conv2d(2, 1)], [SiLU(), Dense(2)]), "layer 1 of layer 1's shortcut, Dense"),
        (lambda: Subsample(1, 2), "layer 1, Subsample.*at most 1 channels, got 2"),
        (lambda: LeakyReLU(1.5), r"slope of LeakyReLU.*\[0, 1\), got 1.5"),
    ],
)
def test_residual_refuses_what_does_not_fit(make, says):
    with pytest.raises(UserError, match=says):
        make().setup((4, 4, 2), 1)
