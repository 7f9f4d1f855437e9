"""Shapes of a convolution (:class:`Geometry`)."""

from typing import NamedTuple


class Geometry(NamedTuple):
    """Shapes of one sample, (H, W, C); (height, width) of the window, its steps, the zeros at each side, and
    the distance between its pixels."""

    input: tuple[int, int, int]
    output: tuple[int, int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int] = (1, 1)
