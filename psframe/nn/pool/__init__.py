"""Pooling layers (:class:`MaxPool2d`, :class:`AvgPool2d`, their 1-D variants, :class:`GlobalAvgPool`)."""

from psframe.nn.pool.global_pool import GlobalAvgPool
from psframe.nn.pool.layers import AvgPool1d, AvgPool2d, MaxPool1d, MaxPool2d

__all__ = ["AvgPool1d", "AvgPool2d", "GlobalAvgPool", "MaxPool1d", "MaxPool2d"]
