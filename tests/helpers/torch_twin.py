"""A bench of layers and their PyTorch counterparts with the same parameters (:class:`Twins`)."""

from collections.abc import Sequence
from contextlib import contextmanager

import numpy as np
import torch

from psframe.bench.torch_layers import sequence_of
from psframe.nn.base import Layer, Pass
from tests.helpers.layers import Bench

torch.set_num_threads(1)


@contextmanager
def plainly():
    """Let PyTorch compute without oneDNN, which on Zen 5 crashes where a dilated window is wider than the image."""
    torch.backends.mkldnn.enabled = False
    try:
        yield
    finally:
        torch.backends.mkldnn.enabled = True


class Twins:
    """Layers and their counterparts; trained tensors are ``ours`` and ``theirs``, statistics ``kept`` and ``buffers``.

    Parameters
    ----------
    shape : tuple of int
        Of a sample, (H, W, C) or (F,).
    options
        As for :class:`Bench`.
    """

    def __init__(self, layers: Sequence[Layer], shape: tuple[int, ...], n: int, flat: bool = False, **options):
        options = {"dtype": "float32", **options}
        self.bench, self.flat = Bench(layers, shape, n + 1, **options), flat
        self.module = sequence_of(layers, flat).to(getattr(torch, options["dtype"]))
        trained = [param.trained for layer in layers for param in layer.params.values()]
        pairs = list(zip(self.bench.params, self.bench.grads, trained, strict=True))
        self.ours, self.kept = ([pair[:2] for pair in pairs if pair[2] == one] for one in (True, False))
        self.theirs = list(self.module.parameters())
        self.buffers = [b for b in self.module.buffers() if b.is_floating_point()]
        for param, _ in self.kept:
            param += 0.7  # variances are positive
        with torch.no_grad():
            for (param, _), other in zip([*self.ours, *self.kept], [*self.theirs, *self.buffers], strict=True):
                if param.ndim > 1:
                    param *= 2 / np.sqrt(param[0].size)
                assert param.shape == tuple(other.shape)
                other.copy_(torch.tensor(param))

    def tensor(self, a: np.ndarray) -> torch.Tensor:
        """Return an array of psframe's as PyTorch has it, to which a gradient is computed."""
        a = a.transpose(0, 3, 1, 2) if a.ndim == 4 else a
        return torch.tensor(a[:, :, 0] if self.flat and a.ndim == 4 else a, requires_grad=True)

    def array(self, t: torch.Tensor) -> np.ndarray:
        """Return a tensor of PyTorch's as psframe has it."""
        t = t[:, :, None] if self.flat and t.dim() == 3 else t
        a = t.detach().numpy()
        return a.transpose(0, 2, 3, 1) if a.ndim == 4 else a

    @plainly()
    def check(self, x: np.ndarray, rtol: float, train: bool = True) -> None:
        """Compare output, gradients and what a step makes of statistics."""
        before = [param.copy() for param, _ in self.kept]
        self.module.train(train)
        x_torch = self.tensor(x)
        y_torch = self.module(x_torch)
        y = self.bench.forward(x, Pass(train=train, samples=np.arange(len(x))))
        close(y, self.array(y_torch), rtol)
        if not train:
            return
        dy = np.random.default_rng(2).standard_normal(y.shape).astype(x.dtype)
        y_torch.backward(self.tensor(dy).detach())
        close(self.bench.backward(dy), self.array(x_torch.grad), rtol)
        for (_, got), want in zip(self.ours, self.theirs, strict=True):
            close(got, want.grad.numpy(), rtol)
        for old, (_, lost), want in zip(before, self.kept, self.buffers, strict=True):
            close(old - lost / len(x), want.numpy(), rtol)


def close(got: np.ndarray, want: np.ndarray, rtol: float) -> None:
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * max(1e-30, np.abs(want).max(initial=0)))
