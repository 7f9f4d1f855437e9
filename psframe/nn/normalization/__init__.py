"""Normalization layers (:class:`BatchNorm`, :class:`GroupNorm`, :class:`LayerNorm`), and the choice of one by name."""

from collections.abc import Callable
from math import gcd
from typing import Literal

from psframe.nn.base import Layer
from psframe.nn.normalization.base import Normalization
from psframe.nn.normalization.batch import BatchNorm
from psframe.nn.normalization.groups import GroupNorm, LayerNorm

__all__ = ["TABLE", "BatchNorm", "GroupNorm", "LayerNorm", "Norm", "Normalization", "normalization"]

Norm = Literal["batch", "batch_over_workers", "group", "layer"]  #: keys of :data:`TABLE`
GROUPS = 8  # of channels, in the models: a few channels in each, and vectors that are full


def normalization(name: Norm, channels: int) -> Layer:
    """Return a layer of :data:`TABLE` for so many channels."""
    return TABLE[name](channels)


TABLE: dict[str, Callable[[int], Layer]] = {
    "batch": lambda channels: BatchNorm(),
    "batch_over_workers": lambda channels: BatchNorm(over="workers"),
    "group": lambda channels: GroupNorm(gcd(channels, GROUPS)),
    "layer": lambda channels: LayerNorm(),
}
