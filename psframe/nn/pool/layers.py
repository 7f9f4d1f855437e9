"""Pooling layers, channel by channel (:class:`MaxPool2d`, :class:`AvgPool2d` and their 1-D variants)."""

from typing import ClassVar

import numpy as np

from psframe.errors import UserError
from psframe.nn.activations import BeforeReLU
from psframe.nn.base import Arrays, BaseLayer, Pass, Shape
from psframe.nn.blocking import side_by_side
from psframe.nn.checks import image, pair
from psframe.nn.pool import plain
from psframe.nn.pool.loops import avg_backward, avg_forward, max_backward, max_backward_apart, max_forward
from psframe.nn.reads import Reads
from psframe.nn.workspace import Workspace


class _Pool(BaseLayer):
    """Pooling windows; input (n, H, W, C), output (n, H', W', C).

    Parameters
    ----------
    kernel : int or (int, int)
        One number, or (height, width).
    stride : int or (int, int), optional
        ``kernel`` if not given. Windows may overlap or leave gaps.
    ceil_mode : bool
        True to count a last window that starts inside the input but ends outside, clipped (as in Caffe).
    """

    axes: ClassVar[int] = 2
    bfloat16 = "arrays"
    reads = Reads(1, 0, 0)

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
        self.input_shape, self.output_shape = input_shape, (out_h, out_w, c)
        return self.output_shape

    def bind(self, params: Arrays, grads: Arrays, workspace: Workspace) -> None:
        super().bind(params, grads, workspace)
        self.y, self.dx = workspace.kept(self.output_shape), workspace.input_gradient(self.input_shape)
        self.plain = workspace.kernels == "blas"
        if not self.plain:
            self.types = side_by_side(self.output_shape[2], np.dtype(workspace.sums).itemsize).types

    def _n_windows(self, size: int, kernel: int, stride: int) -> int:
        n = (size - kernel + (stride - 1 if self.ceil_mode else 0)) // stride + 1
        # as in PyTorch and Caffe: no window starts outside
        return n - 1 if (n - 1) * stride >= size else n


class MaxPool2d(_Pool, BeforeReLU):
    __doc__ = f"The largest number of each window, the first of equals; NaN wins. {_Pool.__doc__}"

    def bind(self, params: Arrays, grads: Arrays, workspace: Workspace) -> None:
        super().bind(params, grads, workspace)
        n_cells = self.kernel[0] * self.kernel[1]
        self.argmax = workspace.kept(self.output_shape, "uint8" if n_cells < 256 else "int32")

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        rows, windows = slice(state.first, state.first + len(x)), (self.kernel, self.stride)
        y = self.y[rows]
        if self.plain:
            plain.max_forward(x, y, self.argmax[rows], *windows, self.relu)
        else:
            self.threads.run(max_forward, self.types, x, y, self.argmax[rows], *windows, self.relu)
        return y

    def backward(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> np.ndarray | None:
        rows, windows = slice(state.first, state.first + len(x)), (self.kernel, self.stride)
        dx = self.dx[: len(x)]
        if self.plain:
            plain.max_backward(dy, dx, self.argmax[rows], *windows)
        else:
            kernel = max_backward_apart if self.stride == self.kernel else max_backward
            self.threads.run(kernel, self.types, dy, dx, self.argmax[rows], *windows)
        return dx


class AvgPool2d(_Pool):
    __doc__ = f"The mean of each window, over what of it lies inside. {_Pool.__doc__}"

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        y = self.y[state.first : state.first + len(x)]
        if self.plain:
            plain.avg_forward(x, y, self.kernel, self.stride)
        else:
            self.threads.run(avg_forward, self.types, x, y, self.kernel, self.stride)
        return y

    def backward(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> np.ndarray | None:
        dx = self.dx[: len(dy)]
        if self.plain:
            plain.avg_backward(dy, dx, self.kernel, self.stride)
        else:
            self.threads.run(avg_backward, self.types, dy, dx, self.kernel, self.stride)
        return dx


class MaxPool1d(MaxPool2d):
    """:class:`MaxPool2d` over sequences (n, 1, T, C), with scalar hyper-parameters."""

    axes = 1


class AvgPool1d(AvgPool2d):
    """:class:`AvgPool2d` over sequences (n, 1, T, C), with scalar hyper-parameters."""

    axes = 1
