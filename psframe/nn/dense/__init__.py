"""Fully connected layer (:class:`Dense`), and the kernels that compute it."""

from psframe.nn.dense.layers import Dense

__all__ = ["Dense"]
