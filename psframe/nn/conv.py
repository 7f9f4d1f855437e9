"""Convolution layers (:class:`Conv2d`, :class:`Conv1d`)."""

from typing import ClassVar

import numpy as np

from psframe.errors import UserError
from psframe.nn.activations import BeforeReLU
from psframe.nn.base import Arrays, Param, Pass, Shape
from psframe.nn.checks import bound, image, pair, whole
from psframe.nn.conv_blas import Im2col
from psframe.nn.conv_direct import Direct
from psframe.nn.geometry import Geometry
from psframe.nn.workspace import Workspace

KERNELS: dict[str, type[Direct] | type[Im2col]] = {"direct": Direct, "blas": Im2col}


class Conv2d(BeforeReLU):
    """Cross-correlation with zero padding, as in PyTorch: input (n, H, W, C), output (n, H', W', out_channels).

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
        self.input_shape = (h, w, c)
        self.output_shape = ((h + 2 * ph - kh) // sh + 1, (w + 2 * pw - kw) // sw + 1, self.out_channels)
        kernel = self.kernel[2 - self.axes :]
        weight = Param((self.out_channels, c, *kernel), (*range(2, 2 + self.axes), 1, 0), bound(self.init, kh * kw * c))
        self.params = {"weight": weight, "bias": Param((self.out_channels,), (0,))}
        return self.output_shape

    def bind(self, params: Arrays, grads: Arrays, workspace: Workspace) -> None:
        super().bind(params, grads, workspace)
        self.y, self.dx = workspace.kept(self.output_shape), workspace.input_gradient(self.input_shape)
        geometry = Geometry(self.input_shape, self.output_shape, self.kernel, self.stride, self.padding)
        self.kernels = KERNELS[workspace.kernels](geometry, self.p, self.g, self.relu, workspace)

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        y = self.y[state.first : state.first + len(x)]
        self.kernels.forward(x, y, state)
        return y

    def backward(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> np.ndarray | None:
        y, dx = self.y[state.first : state.first + len(x)], self.dx[: len(x)]
        self.kernels.backward(x, y, dy, dx, need_dx, state)
        return dx if need_dx else None


class Conv1d(Conv2d):
    """:class:`Conv2d` over sequences (n, 1, T, C), with scalar hyper-parameters; its weight is (out, in, kernel)."""

    axes = 1
