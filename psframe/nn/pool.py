"""Pooling over windows, channel by channel."""

from typing import ClassVar

import numpy as np

from psframe.errors import UserError
from psframe.nn.base import Base, Buffer, Pass, Shape
from psframe.nn.checks import image, pair
from psframe.nn.pool_loops import avg_backward, avg_forward, max_backward, max_forward


class _Pool(Base):
    """Windows and shapes; input (n, H, W, C), output (n, H', W', C).

    Parameters
    ----------
    kernel : int or (int, int)
        One number, or (height, width).
    stride : int or (int, int), optional
        ``kernel`` if not given. Windows may overlap or leave gaps.
    ceil_mode : bool
        Whether a last window that starts inside the input but ends outside counts, clipped (Caffe's way).
    """

    axes: ClassVar[int] = 2

    def __init__(
        self,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] | None = None,
        *,
        ceil_mode: bool = False,
    ):
        self.kernel = pair("kernel", kernel, 1, self.axes)
        self.stride = self.kernel if stride is None else pair("stride", stride, 1, self.axes)
        self.ceil_mode = ceil_mode

    def setup(self, input_shape: Shape, index: int) -> Shape:
        h, w, c = image(self, index, input_shape, self.axes)
        out_h, out_w = (self._n_windows(*sizes) for sizes in zip((h, w), self.kernel, self.stride, strict=True))
        if out_h < 1 or out_w < 1:
            raise UserError(
                f"layer {index}, {type(self).__name__}, must get at least its window {self.kernel}, got "
                f"(H, W) = {(h, w)}; use larger samples or a smaller kernel"
            )
        self.buffers = {"y": Buffer((out_h, out_w, c)), "dx": Buffer(input_shape)}
        return (out_h, out_w, c)

    def _n_windows(self, size: int, kernel: int, stride: int) -> int:
        n = (size - kernel + (stride - 1 if self.ceil_mode else 0)) // stride + 1
        # as PyTorch and Caffe: no window starts outside
        return n - 1 if (n - 1) * stride >= size else n


class MaxPool2d(_Pool):
    __doc__ = f"The largest number of each window, the first of equals; NaN wins. {_Pool.__doc__}"

    def setup(self, input_shape: Shape, index: int) -> Shape:
        shape = super().setup(input_shape, index)
        n_cells = self.kernel[0] * self.kernel[1]
        self.buffers = {**self.buffers, "argmax": Buffer(shape, "uint8" if n_cells < 256 else "int32")}
        return shape

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        y = self.b["y"][: len(x)]
        max_forward(x, y, self.b["argmax"], self.kernel, self.stride)
        return y

    def backward(self, dy: np.ndarray, need_dx: bool) -> np.ndarray | None:
        dx = self.b["dx"][: len(dy)]
        max_backward(dy, dx, self.b["argmax"], self.kernel, self.stride)
        return dx


class AvgPool2d(_Pool):
    __doc__ = f"The mean of each window, over what of it lies inside. {_Pool.__doc__}"

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        y = self.b["y"][: len(x)]
        avg_forward(x, y, self.kernel, self.stride)
        return y

    def backward(self, dy: np.ndarray, need_dx: bool) -> np.ndarray | None:
        dx = self.b["dx"][: len(dy)]
        avg_backward(dy, dx, self.kernel, self.stride)
        return dx


class MaxPool1d(MaxPool2d):
    """:class:`MaxPool2d` over sequences (n, 1, T, C), with plain numbers."""

    axes = 1


class AvgPool1d(AvgPool2d):
    """:class:`AvgPool2d` over sequences (n, 1, T, C), with plain numbers."""

    axes = 1
