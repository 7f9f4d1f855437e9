"""Networks with normalization and shortcuts: sizes as published, and passes and a step as PyTorch's."""

import importlib

import numpy as np
import pytest

from psframe import models
from psframe.nn.losses import softmax_cross_entropy
from psframe.nn.network import Network
from psframe.nn.operations import of_step

torch = pytest.importorskip("torch", reason="PyTorch, which the models are compared with, is not installed")
from tests.helpers.torch_twin import Twins, close  # noqa: E402

#: shape of a sample, classes, parameters, and millions of multiplications and additions of a forward pass
SIZES = {
    "resnet8": ((3, 32, 32), 10, 75_290, 12.2),
    "resnet20": ((3, 32, 32), 10, 269_722, 40.6),  # He et al. 2016, table 6: 0.27 M; 41 M by their authors' count
    "resnet18": ((3, 224, 224), 1000, 11_689_512, 1814),  # table 1: 1.8e9
    "mobilenet_small": ((3, 32, 32), 10, 543_050, 22.9),
    "vgg16_bn_small": ((3, 32, 32), 10, 15_249_354, 313.7),
    "har_resnet": ((9, 128), 6, 483_078, 61.4),
}


def built(name, shape, n_classes, **keys):
    module, _, attr = models.BUILT_IN[name].partition(":")
    return getattr(importlib.import_module(module), attr)(shape, n_classes, **keys)


@pytest.mark.parametrize("name", SIZES)
def test_model_has_the_size_that_was_published(name):
    shape, n_classes, n_params, millions = SIZES[name]
    network = Network(built(name, shape, n_classes), shape, n_classes)
    assert network.whole.n_params == n_params
    assert of_step(network) / 6e6 == pytest.approx(millions, rel=0.005)


#: compiled kernels take seconds a shape, NumPy's none; in float64 no rounding tips a ReLU
CASES = [("resnet8", "batch"), ("har_resnet", "batch")]
LONG = [("mobilenet_small", "batch"), ("resnet20", "batch"), ("resnet18", "batch"), ("vgg16_bn_small", "batch")]
LONG += [(name, norm) for name in ("resnet8", "har_resnet") for norm in ("group", "layer")]


@pytest.mark.parametrize(("name", "norm"), [*CASES, *(pytest.param(*case, marks=pytest.mark.full) for case in LONG)])
def test_recent_model_is_that_of_pytorch(name, norm):
    shape, n_classes = ((9, 32), 6) if name == "har_resnet" else ((3, 32, 32), 10)
    keys = {"dropout": 0} if name.startswith("vgg") else {}
    layers, n, flat = built(name, shape, n_classes, norm=norm, **keys), 3, len(shape) == 2
    in_order = (1, shape[1], shape[0]) if flat else (shape[1], shape[2], shape[0])
    twins = Twins(layers, in_order, n, flat, dtype="float64", kernels="blas")
    x = np.random.default_rng(1).standard_normal((n, *in_order))
    twins.check(x, 1e-6)
    loss_falls_alike(twins, x)


def loss_falls_alike(twins, x):
    """Take a step of plain gradient descent in both, and compare the losses after it."""
    labels, n = np.arange(len(x)) % 3, len(x)
    logits = twins.bench.forward(x, twins.bench.state)
    dlogits = np.empty_like(logits)
    before, _ = softmax_cross_entropy(logits, labels, dlogits)
    twins.bench.backward(dlogits)
    twins.module.zero_grad()
    loss = torch.nn.functional.cross_entropy(twins.module(twins.tensor(x)), torch.tensor(labels), reduction="sum")
    assert before == pytest.approx(loss.item(), rel=1e-6)
    loss.backward()
    with torch.no_grad():
        for (param, grad), other in zip(twins.ours, twins.theirs, strict=True):
            param -= 1e-3 / n * grad
            other -= 1e-3 / n * other.grad
            close(param, other.numpy(), 1e-6)
    after, _ = softmax_cross_entropy(twins.bench.forward(x, twins.bench.state), labels, dlogits[:0])
    loss = torch.nn.functional.cross_entropy(twins.module(twins.tensor(x)), torch.tensor(labels), reduction="sum")
    assert after == pytest.approx(loss.item(), rel=1e-6)
    assert after != before
