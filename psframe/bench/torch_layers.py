"""PyTorch's counterparts of layers (:func:`module_of`)."""

from collections.abc import Sequence
from typing import Any

from psframe.errors import UserError
from psframe.nn import activations, conv, dense, normalization, pool, residual, smooth
from psframe.nn.base import Layer


def sequence_of(layers: Sequence[Layer], flat: bool) -> Any:
    """Return layers, after their ``setup``, as a ``torch.nn.Sequential``; ``flat`` as in :func:`module_of`."""
    from torch import nn

    return nn.Sequential(*(module_of(layer, flat) for layer in layers))


def module_of(layer: Layer, flat: bool) -> Any:
    """Return PyTorch's counterpart of a layer after its ``setup``; ``flat`` if it takes sequences (n, C, T)."""
    from torch import nn

    def size(pair: tuple[int, int]) -> Any:
        return pair[1] if flat else pair

    if hasattr(layer, "twin"):
        return layer.twin()
    if isinstance(layer, conv.Conv2d):
        kind = nn.Conv1d if flat else nn.Conv2d
        window = map(size, (layer.kernel, layer.stride, layer.padding, layer.dilation))
        return kind(layer.input_shape[2], layer.out_channels, *window, layer.groups, layer.has_bias)
    if isinstance(layer, pool.GlobalAvgPool):
        return nn.Sequential(nn.AdaptiveAvgPool1d(1) if flat else nn.AdaptiveAvgPool2d(1), nn.Flatten())
    if isinstance(layer, pool.MaxPool2d | pool.AvgPool2d):
        name = ("Max" if isinstance(layer, pool.MaxPool2d) else "Avg") + ("Pool1d" if flat else "Pool2d")
        return getattr(nn, name)(size(layer.kernel), size(layer.stride), ceil_mode=layer.ceil_mode)
    if isinstance(layer, dense.Dense):
        return nn.Linear(layer.features, layer.out_features)
    if isinstance(layer, normalization.BatchNorm):
        kind = nn.BatchNorm1d if flat or len(layer.shape) == 1 else nn.BatchNorm2d
        return kind(layer.channels, layer.eps, layer.momentum)
    if isinstance(layer, normalization.GroupNorm):
        return nn.GroupNorm(layer.groups, layer.channels, layer.eps)
    if isinstance(layer, residual.Residual):
        return _residual(*(sequence_of(chain.layers, flat) for chain in layer.chains))
    if isinstance(layer, residual.Subsample):
        return _subsample(layer.stride, layer.begin, layer.channels)
    if isinstance(layer, smooth.LeakyReLU):
        return nn.LeakyReLU(layer.slope)
    if isinstance(layer, activations.Dropout):
        return nn.Dropout(layer.p_drop)
    for kind in (activations.ReLU, activations.Flatten, smooth.SiLU, smooth.GELU):
        if isinstance(layer, kind):
            return getattr(nn, kind.__name__)()
    raise UserError(f"PyTorch must have every layer of the model, got {type(layer).__name__}; measure without PyTorch")


def _residual(body: Any, shortcut: Any) -> Any:
    import torch

    class Sum(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.shortcut = body, shortcut

        def forward(self, x: Any) -> Any:
            return self.body(x) + self.shortcut(x)

    return Sum()


def _subsample(stride: int, begin: int, channels: int) -> Any:
    import torch

    class Pad(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            taken = x[:, :, ::stride, ::stride]
            return torch.nn.functional.pad(taken, (0, 0, 0, 0, begin, channels - begin - x.shape[1]))

    return Pad()
