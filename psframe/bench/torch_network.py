"""Conversion of a network to PyTorch: its module (:func:`torch_module`), and a training step (:func:`torch_step`)."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from psframe.bench.torch_layers import sequence_of
from psframe.errors import UserError
from psframe.nn.base import Layer, Shape

FORMATS = ("contiguous", "channels_last")


def torch_module(layers: Sequence[Layer], input_shape: Shape, memory_format: str) -> Any:
    """Return the layers as a ``torch.nn.Sequential``; one-dimensional ones for contiguous sequences."""
    import torch

    flat = _flat(input_shape, memory_format)
    module = sequence_of(layers, flat)
    form = torch.channels_last if memory_format == "channels_last" else torch.contiguous_format
    return module if flat else module.to(memory_format=form)


def torch_images(x: np.ndarray, input_shape: Shape, memory_format: str) -> Any:
    """Return a batch (n, H, W, C) as the module's input, (n, C, H, W) or (n, C, T); channels_last is a view."""
    import torch

    images = torch.from_numpy(x).permute(0, 3, 1, 2)
    images = images[:, :, 0] if _flat(input_shape, memory_format) else images
    return images if memory_format == "channels_last" else images.contiguous()


def copy_parameters(module: Any, views: Iterable[np.ndarray]) -> None:
    """Copy the layers' parameters, views in logical shape as those of ``Arena.views``, into a module."""
    import torch

    with torch.no_grad():
        for theirs, ours in zip(module.parameters(), views, strict=True):
            theirs.copy_(torch.from_numpy(np.ascontiguousarray(ours)).reshape(theirs.shape))


def _flat(input_shape: Shape, memory_format: str) -> bool:
    """True if samples are sequences to PyTorch, which has no channels_last for these."""
    return len(input_shape) == 2 and memory_format == "contiguous"


def torch_step(
    layers: Sequence[Layer],
    input_shape: Shape,
    x: np.ndarray,
    labels: np.ndarray,
    memory_format: str,
    n_threads: int,
    precision: str = "float32",
) -> Callable[[], None]:
    """Return a function that runs one training step of the layers in PyTorch: SGD with momentum.

    Parameters
    ----------
    layers : sequence of Layer
        After their ``setup``; before or after one has absorbed another.
    input_shape : (C, H, W) or (C, T)
    x : ndarray, shape (n, H, W, C)
    memory_format : {'contiguous', 'channels_last'}
        Sequences have no channels_last: they are then images of height 1.
    precision : {'float32', 'bf16'}
        With ``bf16``, the forward pass is under PyTorch's autocast.
    """
    try:
        import torch
    except ImportError:
        raise UserError("--against torch needs PyTorch, got none; pip install torch==2.13.0") from None
    torch.set_num_threads(n_threads)
    torch.manual_seed(0)
    images = torch_images(x, input_shape, memory_format)
    module = torch_module(layers, input_shape, memory_format)
    answers = torch.tensor(labels)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.001, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = torch.nn.functional.cross_entropy(module(images), answers)
        loss.backward()
        optimizer.step()

    return step
