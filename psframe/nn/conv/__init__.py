"""Convolutions (:class:`Conv2d`, :class:`Conv1d`), and the kernels that compute them."""

from psframe.nn.conv.layers import Conv1d, Conv2d

__all__ = ["Conv1d", "Conv2d"]
