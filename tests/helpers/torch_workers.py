"""A user's module as a rank has it (:class:`Worker`), and as PyTorch has it (:func:`reference`)."""

import numpy as np
import torch

from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena, Keeping
from psframe.models.torch_module import torch_module
from psframe.nn.base import Pass
from psframe.nn.initial import initialize
from psframe.nn.network import Network
from tests.helpers import torch_nets

IMAGES, CLASSES, BATCH = (2, 8, 9), 5, 6


class Worker:
    """A rank's network in memory of its own."""

    def __init__(self, name, input_shape, n_state=1, copies=1, precision="float32", **arguments):
        spec = {"build": f"tests.helpers.torch_nets:{name}", "arguments": arguments}
        self.network = Network(torch_module(input_shape, CLASSES, **spec), input_shape, CLASSES, precision=precision)
        self.allocator = Allocator()
        self.arena = Arena(self.network.layout, n_state, self.allocator, keeping=Keeping(copies))
        self.network.bind(self.arena, BATCH, self.allocator)
        initialize(self.network, 7)

    def tensors(self):
        """Return the arena's tensors by the names that they have in the user's module."""
        return {name.split(".", 2)[2]: view for name, view in self.arena.views(self.arena.params).items()}


def reference(name, input_shape, seed, **arguments):
    """Return the user's module with the initial values of a seed, without psframe."""
    known = {"input_shape": input_shape, "n_classes": CLASSES, "num_classes": CLASSES}
    make = getattr(torch_nets, name)
    code = (make.__init__ if isinstance(make, type) else make).__code__
    takes = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    torch.manual_seed(seed)
    module = make(**{k: v for k, v in known.items() if k in takes}, **arguments)
    with torch.no_grad():
        module.eval()(torch.zeros(1, *input_shape))
    return module.train()


def batches(input_shape, n, step):
    """Return n samples as psframe has them, and as PyTorch does, and labels."""
    rng = np.random.default_rng(step)
    x, labels = rng.standard_normal((n, *input_shape), np.float32), rng.integers(0, CLASSES, n)
    ours = x.transpose(0, 2, 3, 1) if len(input_shape) == 3 else x.transpose(0, 2, 1)[:, None]
    return np.ascontiguousarray(ours), torch.from_numpy(x), labels


def seeded(module, index=0):
    """Drop what a pass of psframe's drops: dropout's numbers come from PyTorch's generator."""
    from psframe.nn.torch_layer import _mixed

    torch.manual_seed(_mixed(Pass(True, 3, 1, np.arange(1)), index))
    return module


def close(got, want, rtol=1e-5):
    want = want.detach().numpy()
    np.testing.assert_allclose(got, want, rtol=rtol, atol=rtol * max(1e-3, np.abs(want).max()))
