"""Shapes of a convolution (:class:`Geometry`)."""

from typing import NamedTuple


class Geometry(NamedTuple):
    """Shapes of one sample, (H, W, C); (height, width) of the window, its steps and the zeros at each side."""

    input: tuple[int, int, int]
    output: tuple[int, int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
