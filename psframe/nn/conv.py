"""Convolutions as one matrix product a pass (im2col; Chellapilla, Puri, Simard 2006, "High performance convolutional
neural networks for document processing")."""

from typing import ClassVar

import numpy as np

from psframe.errors import UserError
from psframe.nn.base import Base, Buffer, Param, Pass, Shape
from psframe.nn.checks import bound, image, pair, whole
from psframe.nn.jit import jit
from psframe.nn.sums import column_sums


class Conv2d(Base):
    """Cross-correlation with zero padding, as in PyTorch; input (n, H, W, C), output (n, H', W', out_channels).

    Parameters
    ----------
    out_channels : int
    kernel, stride, padding : int or (int, int)
        One number, or (height, width).
    init : {'xavier', 'he'}
        See :func:`psframe.nn.checks.bound`; the bias starts at 0.
    """

    axes: ClassVar[int] = 2

    def __init__(
        self,
        out_channels: int,
        kernel: int | tuple[int, int],
        *,
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        init: str = "xavier",
    ):
        self.out_channels = whole("out_channels", out_channels, 1)
        self.kernel = pair("kernel", kernel, 1, self.axes)
        self.stride = pair("stride", stride, 1, self.axes)
        self.padding = pair("padding", padding, 0, self.axes)
        self.init = init

    def setup(self, input_shape: Shape, index: int) -> Shape:
        h, w, c = image(self, index, input_shape, self.axes)
        (kh, kw), (sh, sw), (ph, pw) = self.kernel, self.stride, self.padding
        if kh > h + 2 * ph or kw > w + 2 * pw:
            raise UserError(
                f"layer {index}, {type(self).__name__}, must get at least as much as its kernel {self.kernel} covers, "
                f"got (H, W) = {(h, w)} with padding {self.padding}; use larger samples, a smaller kernel or padding"
            )
        out_h, out_w, out = (h + 2 * ph - kh) // sh + 1, (w + 2 * pw - kw) // sw + 1, self.out_channels
        fan_in = kh * kw * c
        kernel = self.kernel[2 - self.axes :]
        weight = Param((out, c, *kernel), (*range(2, 2 + self.axes), 1, 0), bound(self.init, fan_in))
        self.params = {"weight": weight, "bias": Param((out,), (0,))}
        self.buffers = {
            "cols": Buffer((out_h, out_w, fan_in)),
            "y": Buffer((out_h, out_w, out)),
            "dx": Buffer((h, w, c)),
        }
        return (out_h, out_w, out)

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        cols, y = self.b["cols"][: len(x)], self.b["y"][: len(x)]
        im2col(x, cols, self.kernel, self.stride, self.padding)
        np.matmul(_rows(cols), _rows(self.p["weight"]), out=_rows(y))
        y += self.p["bias"]
        return y

    def backward(self, dy: np.ndarray, need_dx: bool) -> np.ndarray | None:
        cols, dy_rows = self.b["cols"][: len(dy)], _rows(dy)
        np.matmul(_rows(cols).T, dy_rows, out=_rows(self.g["weight"]))
        column_sums(dy_rows, self.g["bias"])
        if not need_dx:
            return None
        # the columns have served: their gradient takes their place
        np.matmul(dy_rows, _rows(self.p["weight"]).T, out=_rows(cols))
        dx = self.b["dx"][: len(dy)]
        col2im(cols, dx, self.kernel, self.stride, self.padding)
        return dx


class Conv1d(Conv2d):
    """:class:`Conv2d` over sequences (n, 1, T, C), with plain numbers; its weight is (out, in, kernel)."""

    axes = 1


def _rows(a: np.ndarray) -> np.ndarray:
    return a.reshape(-1, a.shape[-1])


@jit
def _clip(start, size, end):
    """Return the part of [0, size) which, moved by ``start``, lies in [0, end)."""
    low = min(size, max(0, -start))
    return low, max(low, min(size, end - start))


@jit
def im2col(x, cols, kernel, stride, padding):
    """Write to ``cols`` (n, H', W', kh * kw * C) what the kernel covers of ``x`` (n, H, W, C) at each place."""
    n, h, w, c = x.shape
    width = kernel[1] * c
    for s in range(n):
        flat = x[s].reshape(-1)
        for i in range(cols.shape[1]):
            for j in range(cols.shape[2]):
                left = j * stride[1] - padding[1]
                low, high = _clip(left, kernel[1], w)
                for a in range(kernel[0]):
                    row = i * stride[0] + a - padding[0]
                    to = cols[s, i, j, a * width : (a + 1) * width]
                    if not 0 <= row < h:
                        to[:] = 0
                        continue
                    source = flat[(row * w + left + low) * c : (row * w + left + high) * c]
                    inside = to[low * c : high * c]
                    for t in range(len(inside)):
                        inside[t] = source[t]
                    if len(inside) < width:
                        to[: low * c] = 0
                        to[high * c :] = 0


@jit
def col2im(cols, dx, kernel, stride, padding):
    """Write to ``dx`` (n, H, W, C) the sums of the ``cols`` that :func:`im2col` copies from each place."""
    n, h, w, c = dx.shape
    width = kernel[1] * c
    dx[:] = 0
    for s in range(n):
        flat = dx[s].reshape(-1)
        for i in range(cols.shape[1]):
            for j in range(cols.shape[2]):
                left = j * stride[1] - padding[1]
                low, high = _clip(left, kernel[1], w)
                for a in range(kernel[0]):
                    row = i * stride[0] + a - padding[0]
                    if not 0 <= row < h:
                        continue
                    source = cols[s, i, j, a * width + low * c : a * width + high * c]
                    to = flat[(row * w + left + low) * c : (row * w + left + high) * c]
                    for t in range(len(to)):
                        to[t] += source[t]
