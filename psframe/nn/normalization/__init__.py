"""Normalization layers (:class:`BatchNorm`, :class:`GroupNorm`, :class:`LayerNorm`), and the choice of one by name."""

from psframe.nn.normalization.layers import (
    TABLE,
    BatchNorm,
    GroupNorm,
    LayerNorm,
    Norm,
    Normalization,
    normalization,
)

__all__ = ["TABLE", "BatchNorm", "GroupNorm", "LayerNorm", "Norm", "Normalization", "normalization"]
