"""Layers, loss and whole models against PyTorch, in float32."""

import re

import numpy as np
import pytest

from psframe.models.alexnet import alexnet, alexnet_small
from psframe.models.cifar_quick import cifar_quick
from psframe.models.har_cnn import har_cnn
from psframe.models.lenet import lenet
from psframe.models.vgg16 import vgg16, vgg16_bn_small, vgg16_small
from psframe.nn.activations import Flatten, ReLU
from psframe.nn.conv import Conv1d, Conv2d
from psframe.nn.dense import Dense
from psframe.nn.losses import softmax_cross_entropy
from psframe.nn.pool import AvgPool1d, AvgPool2d, MaxPool1d, MaxPool2d
from tests.helpers.layers import Bench
from tests.helpers.thinned import thinned

torch = pytest.importorskip("torch", reason="PyTorch, which the layers are compared with, is not installed")
from psframe.bench.torch_layers import sequence_of  # noqa: E402

tnn = torch.nn
torch.set_num_threads(1)


def close(got, want, rtol=1e-4):
    want = want.detach().numpy()
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * np.abs(want).max())


def channels_first(a):
    """Return (n, H, W, C) as (n, C, H, W); rows as they are."""
    return a.transpose(0, 3, 1, 2) if a.ndim == 4 else a


def like_torch(a, sequence):
    """Return an array of psframe's in PyTorch's order of axes."""
    a = channels_first(a)
    return a[:, :, 0] if sequence and a.ndim == 4 else a


def pair_up(layers, module, input_shape, n, dtype="float32"):
    """Return a bench and random input, with the bench's parameters copied into ``module``."""
    bench = Bench(layers, input_shape, n + 1, dtype)
    with torch.no_grad():
        for ours, theirs in zip(bench.params, module.parameters(), strict=True):
            assert ours.shape == tuple(theirs.shape)
            if ours.ndim > 1:
                ours *= 2 / np.sqrt(ours[0].size)
            theirs.copy_(torch.tensor(ours))
    return bench, np.random.default_rng(1).standard_normal((n, *input_shape), dtype=dtype)


CASES = {
    "conv": (lambda: Conv2d(5, 3), lambda: tnn.Conv2d(3, 5, 3), (9, 8, 3)),
    "conv-one-channel": (lambda: Conv2d(4, 5), lambda: tnn.Conv2d(1, 4, 5), (9, 8, 1)),
    "conv-oblong": (
        lambda: Conv2d(5, (3, 2), stride=(2, 3), padding=(1, 2)),
        lambda: tnn.Conv2d(3, 5, (3, 2), stride=(2, 3), padding=(1, 2)),
        (9, 8, 3),
    ),
    "conv1d": (
        lambda: Conv1d(4, 3, stride=2, padding=1),
        lambda: tnn.Conv1d(5, 4, 3, stride=2, padding=1),
        (1, 11, 5),
    ),
    "dense": (lambda: Dense(4), lambda: tnn.Linear(7, 4), (7,)),
    "relu": (ReLU, tnn.ReLU, (4, 5, 3)),
    "flatten": (Flatten, tnn.Flatten, (4, 5, 3)),
    "flatten-sequence": (Flatten, tnn.Flatten, (1, 5, 3)),
    "flatten-dense": (
        lambda: [Flatten(), Dense(4)],
        lambda: tnn.Sequential(tnn.Flatten(), tnn.Linear(60, 4)),
        (4, 5, 3),
    ),
}
for ceil in (False, True):
    for kernel, stride, shape in (
        (2, None, (7, 8, 3)),
        (3, 2, (8, 7, 2)),
        ((3, 2), (1, 3), (6, 6, 1)),
        (2, 3, (6, 4, 2)),
    ):
        for ours, theirs in ((MaxPool2d, tnn.MaxPool2d), (AvgPool2d, tnn.AvgPool2d)):
            CASES[f"{ours.__name__}-{kernel}-{stride}-{ceil}"] = (
                lambda ours=ours, k=kernel, s=stride, c=ceil: ours(k, s, ceil_mode=c),
                lambda theirs=theirs, k=kernel, s=stride, c=ceil: theirs(k, s, ceil_mode=c),
                shape,
            )
    for ours, theirs in ((MaxPool1d, tnn.MaxPool1d), (AvgPool1d, tnn.AvgPool1d)):
        CASES[f"{ours.__name__}-{ceil}"] = (
            lambda ours=ours, c=ceil: ours(3, 2, ceil_mode=c),
            lambda theirs=theirs, c=ceil: theirs(3, 2, ceil_mode=c),
            (1, 10, 3),
        )


#: kernels that other tests of the default suite compile, too, are quick to have here
COMPILED = [at for at, name in enumerate(CASES) if name not in ("conv-one-channel", "conv-oblong", "flatten-dense")]


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("case", thinned(CASES, COMPILED))
def test_layer_is_that_of_pytorch(case, n):
    make, make_torch, input_shape = CASES[case]
    layers, module = make(), make_torch()
    layers = layers if isinstance(layers, list) else [layers]
    bench, x = pair_up(layers, module, input_shape, n)
    sequence = input_shape[0] == 1 and len(input_shape) == 3
    x_torch = torch.tensor(like_torch(x, sequence), requires_grad=True)
    y, y_torch = bench.forward(x), module(x_torch)
    close(like_torch(y, sequence), y_torch)
    dy = np.random.default_rng(2).standard_normal(y.shape, dtype=np.float32)
    y_torch.backward(torch.tensor(like_torch(dy, sequence)))
    close(like_torch(bench.backward(dy), sequence), x_torch.grad)
    for got, parameter in zip(bench.grads, module.parameters(), strict=True):
        close(got, parameter.grad)


def test_max_pool_with_nan_and_equals():
    x = np.random.default_rng(0).integers(0, 3, (2, 8, 7, 4)).astype(np.float32)
    x[np.random.default_rng(1).random(x.shape) < 0.1] = np.nan
    bench, x_torch = Bench([MaxPool2d(3, 2)], x.shape[1:], 2, "float32"), torch.tensor(channels_first(x))
    x_torch.requires_grad_()
    y_torch = tnn.MaxPool2d(3, 2)(x_torch)
    np.testing.assert_array_equal(channels_first(bench.forward(x)), y_torch.detach().numpy())
    y_torch.backward(torch.ones_like(y_torch))
    dx = bench.backward(np.ones((2, *bench.output_shape), np.float32))
    np.testing.assert_array_equal(channels_first(dx), x_torch.grad.numpy())


def test_loss_is_that_of_pytorch():
    rng = np.random.default_rng(0)
    logits, labels = rng.standard_normal((6, 5), dtype=np.float32) * 4, rng.integers(0, 5, 6)
    dlogits = np.empty_like(logits)
    loss, n_correct = softmax_cross_entropy(logits, labels, dlogits)
    logits_torch = torch.tensor(logits, requires_grad=True)
    loss_torch = tnn.functional.cross_entropy(logits_torch, torch.tensor(labels), reduction="sum")
    loss_torch.backward()
    assert loss == pytest.approx(loss_torch.item(), rel=1e-5)
    assert n_correct == int((logits_torch.argmax(1).numpy() == labels).sum())
    close(dlogits, logits_torch.grad)


def vgg_like(width, n_classes, norm=False):
    layers, c_in = [], 3
    for c_out, n in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for c in [c_in, *[c_out] * (n - 1)]:
            normed = [tnn.BatchNorm2d(c_out)] if norm else []
            layers += [tnn.Conv2d(c, c_out, 3, padding=1, bias=not norm), *normed, tnn.ReLU()]
        layers, c_in = [*layers, tnn.MaxPool2d(2)], c_out
    layers += [tnn.Flatten(), tnn.Linear(512, width), tnn.ReLU(), tnn.Dropout()]
    return [*layers, tnn.Linear(width, width), tnn.ReLU(), tnn.Dropout(), tnn.Linear(width, n_classes)]


def alexnet_like(first, features, width, n_classes):
    return [
        *(first, tnn.ReLU(), tnn.MaxPool2d(3, 2)),
        *(tnn.Conv2d(64, 192, 5, padding=2), tnn.ReLU(), tnn.MaxPool2d(3, 2)),
        *(tnn.Conv2d(192, 384, 3, padding=1), tnn.ReLU(), tnn.Conv2d(384, 256, 3, padding=1), tnn.ReLU()),
        *(tnn.Conv2d(256, 256, 3, padding=1), tnn.ReLU(), tnn.MaxPool2d(3, 2), tnn.Flatten()),
        *(tnn.Dropout(), tnn.Linear(features, width), tnn.ReLU()),
        *(tnn.Dropout(), tnn.Linear(width, width), tnn.ReLU(), tnn.Linear(width, n_classes)),
    ]


MODELS = {
    "lenet": (
        lambda: lenet((1, 28, 28), 10),
        lambda: tnn.Sequential(
            *(tnn.Conv2d(1, 20, 5), tnn.MaxPool2d(2), tnn.Conv2d(20, 50, 5), tnn.MaxPool2d(2), tnn.Flatten()),
            *(tnn.Linear(800, 500), tnn.ReLU(), tnn.Linear(500, 10)),
        ),
        (28, 28, 1),
    ),
    "cifar_quick": (
        lambda: cifar_quick((3, 32, 32), 10),
        lambda: tnn.Sequential(
            *(tnn.Conv2d(3, 32, 5, padding=2), tnn.MaxPool2d(3, 2, ceil_mode=True), tnn.ReLU()),
            *(tnn.Conv2d(32, 32, 5, padding=2), tnn.ReLU(), tnn.AvgPool2d(3, 2, ceil_mode=True)),
            *(tnn.Conv2d(32, 64, 5, padding=2), tnn.ReLU(), tnn.AvgPool2d(3, 2, ceil_mode=True)),
            *(tnn.Flatten(), tnn.Linear(1024, 64), tnn.Linear(64, 10)),
        ),
        (32, 32, 3),
    ),
    "alexnet_small": (
        lambda: alexnet_small((3, 32, 32), 10),
        lambda: tnn.Sequential(*alexnet_like(tnn.Conv2d(3, 64, 3, padding=1), 2304, 512, 10)),
        (32, 32, 3),
    ),
    "alexnet": (
        lambda: alexnet((3, 64, 64), 3),
        lambda: tnn.Sequential(*alexnet_like(tnn.Conv2d(3, 64, 11, stride=4, padding=2), 256, 4096, 3)),
        (64, 64, 3),
    ),
    "vgg16_small": (
        lambda: vgg16_small((3, 32, 32), 10),
        lambda: tnn.Sequential(*vgg_like(512, 10)),
        (32, 32, 3),
    ),
    "har_cnn": (
        lambda: har_cnn((9, 128), 6),
        lambda: tnn.Sequential(
            *(tnn.Conv1d(9, 64, 3), tnn.ReLU(), tnn.Conv1d(64, 64, 3), tnn.ReLU()),
            *(tnn.Conv1d(64, 64, 3), tnn.ReLU(), tnn.Conv1d(64, 64, 3), tnn.ReLU()),
            *(tnn.Dropout(), tnn.MaxPool1d(2), tnn.Flatten(), tnn.Linear(3840, 100), tnn.ReLU(), tnn.Linear(100, 6)),
        ),
        (1, 128, 9),
    ),
}


#: compared by their layers alone, which takes no time
ALIKE = {
    "vgg16": (
        lambda: vgg16((3, 32, 32), 1000),
        lambda: tnn.Sequential(*vgg_like(4096, 1000)),
        (32, 32, 3),
    ),
    "vgg16_bn_small": (
        lambda: vgg16_bn_small((3, 32, 32), 10),
        lambda: tnn.Sequential(*vgg_like(512, 10, norm=True)),
        (32, 32, 3),
    ),
}


def in_words(module):
    """Return the kinds of a module's layers and their keys; a pair of equal numbers as one number."""
    return re.sub(r"\((\d+),(?: \1)?\)", r"\1", repr(module))


@pytest.mark.parametrize("name", [*MODELS, *ALIKE])
def test_model_has_the_layers_of_pytorch_in_their_order(name):
    make, make_torch, shape = {**MODELS, **ALIKE}[name]
    layers = make()
    for index, layer in enumerate(layers):
        shape = layer.setup(shape, index)
    with torch.device("meta"):
        assert in_words(sequence_of(layers, name == "har_cnn")) == in_words(make_torch())


#: their kernels are compiled first, which takes most of the time: the larger models are left to the long suites
QUICK = ("lenet",)


@pytest.mark.parametrize("name", [pytest.param(m, marks=[] if m in QUICK else pytest.mark.full) for m in MODELS])
def test_model_is_that_of_pytorch(name):
    make, make_torch, input_shape = MODELS[name]
    module, n = make_torch().eval(), 5  # nothing is dropped
    # behind many layers a rounding tips a ReLU or a maximum now and then, and with it a few gradients; not in float64
    dtype = "float64" if name.startswith(("alexnet", "vgg")) else "float32"
    bench, x = pair_up(make(), module.to(getattr(torch, dtype)), input_shape, n, dtype)
    labels = np.random.default_rng(3).integers(0, bench.output_shape[0], n)
    logits = bench.forward(x)
    dlogits = np.empty_like(logits)
    loss, _ = softmax_cross_entropy(logits, labels, dlogits)
    x_torch = torch.tensor(like_torch(x, name == "har_cnn"), requires_grad=True)
    logits_torch = module(x_torch)
    loss_torch = tnn.functional.cross_entropy(logits_torch, torch.tensor(labels), reduction="sum")
    loss_torch.backward()
    close(logits, logits_torch)
    assert loss == pytest.approx(loss_torch.item(), rel=1e-4)
    close(like_torch(bench.backward(dlogits), name == "har_cnn"), x_torch.grad)
    for got, parameter in zip(bench.grads, module.parameters(), strict=True):
        close(got, parameter.grad)
