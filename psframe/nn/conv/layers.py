"""Convolution layers (:class:`Conv2d`, :class:`Conv1d`)."""

from math import prod
from typing import ClassVar

import numpy as np

from psframe.errors import UserError
from psframe.nn.activations import BeforeReLU
from psframe.nn.base import Arrays, Param, Pass, Shape
from psframe.nn.checks import bound, image, pair, whole
from psframe.nn.conv import unfolded, winograd
from psframe.nn.conv.blas import Im2col
from psframe.nn.conv.depthwise import Depthwise
from psframe.nn.conv.direct import Direct
from psframe.nn.conv.gathered import Gathered
from psframe.nn.conv.geometry import Geometry
from psframe.nn.conv.unfolded import Unfolded
from psframe.nn.conv.winograd import Winograd
from psframe.nn.workspace import Workspace

KERNELS: dict[str, type[Direct] | type[Im2col]] = {"direct": Direct, "winograd": Direct, "blas": Im2col}


class Conv2d(BeforeReLU):
    """Cross-correlation with zero padding, as in PyTorch: input (n, H, W, C), output (n, H', W', out_channels).

    Parameters
    ----------
    out_channels : int
    kernel, stride, padding, dilation : int or (int, int)
        One number, or (height, width).
    groups : int
        Divides the channels of input and output: each group of outputs sees one group of inputs. With one channel a
        group in both the convolution is *depthwise*, with kernels of its own.
    bias : bool
        False for none, as before a normalization, which would take it out again.
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
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        init: str = "xavier",
    ):
        self.out_channels = whole("out_channels", out_channels, 1)
        self.kernel = pair("kernel", kernel, 1, self.axes)
        self.stride = pair("stride", stride, 1, self.axes)
        self.padding = pair("padding", padding, 0, self.axes)
        self.dilation = pair("dilation", dilation, 1, self.axes)
        self.groups = whole("groups", groups, 1)
        self.has_bias, self.init = bias, init

    def setup(self, input_shape: Shape, index: int) -> Shape:
        h, w, c = image(self, index, input_shape, self.axes)
        if c % self.groups or self.out_channels % self.groups:
            raise UserError(
                f"layer {index}, {type(self).__name__}, must get channels that groups divide, and return such, got {c} "
                f"and {self.out_channels} with groups={self.groups}; mend the model"
            )
        n = tuple(map(self._n_places, (h, w), self.kernel, self.stride, self.padding, self.dilation))
        if min(n) < 1:
            raise UserError(
                f"layer {index}, {type(self).__name__}, must get at least as much as its kernel {self.kernel} covers, "
                f"got (H, W) = {(h, w)} with padding {self.padding}; use larger samples, a smaller kernel or padding"
            )
        self.input_shape, self.output_shape = (h, w, c), (n[0], n[1], self.out_channels)
        self.depthwise = self.groups == c == self.out_channels and c > 1
        kernel, of_group = self.kernel[2 - self.axes :], c // self.groups
        order, fan_in = (*range(2, 2 + self.axes), 1, 0), prod(self.kernel) * of_group
        weight = Param((self.out_channels, of_group, *kernel), order, bound(self.init, fan_in))
        self.params = {"weight": weight}
        if self.has_bias:
            self.params["bias"] = Param((self.out_channels,), (0,))
        return self.output_shape

    @staticmethod
    def _n_places(size: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
        return (size + 2 * padding - (kernel - 1) * dilation - 1) // stride + 1

    @property
    def is_dense(self) -> bool:
        """True if every output sees all channels of neighbouring pixels."""
        return self.groups == 1 and self.dilation == (1, 1)

    def bind(self, params: Arrays, grads: Arrays, workspace: Workspace) -> None:
        # kernels add zeros, and leave the gradient of these where nobody looks
        self.no_bias = {} if self.has_bias else {"bias": workspace.array(self.out_channels)}
        if not self.has_bias:
            self.no_bias["bias"][:] = 0
        super().bind(params, grads, workspace)
        if not self.has_bias:
            self.g["bias"] = workspace.array(self.out_channels, workspace.sums)
        self.y, self.dx = workspace.kept(self.output_shape), workspace.input_gradient(self.input_shape)
        window = self.kernel, self.stride, self.padding, self.dilation
        (h, w, c), (out_h, out_w, out), dense = self.input_shape, self.output_shape, KERNELS[workspace.kernels]
        if window == ((1, 1), (1, 1), (0, 0), (1, 1)):  # a product over all pixels: one long row
            h, w, out_h, out_w = 1, h * w, 1, h * w
        self.sides = (h, w), (out_h, out_w)
        geometry = Geometry((h, w, c), (out_h, out_w, out), *window)
        arguments = geometry, self.p, self.g, self.relu, workspace
        if self.depthwise:
            self.kernels = Depthwise(*arguments)
        elif not self.is_dense:
            self.kernels = Gathered(dense, *arguments, self.groups)
        elif dense is Direct and workspace.in_one == 1 and unfolded.pays(geometry, self.p["weight"].size):
            self.kernels = Unfolded(*arguments)
        elif workspace.kernels == "winograd" and workspace.in_one == 1 and winograd.pays(geometry):
            self.kernels = Winograd(*arguments)
        else:
            self.kernels = dense(*arguments)

    def _in_memory(self, arrays: Arrays) -> Arrays:
        return {**super()._in_memory(arrays), **self.no_bias}

    def _as_computed(self, images: np.ndarray, sides: tuple[int, int]) -> np.ndarray:
        return images.reshape(len(images), *sides, images.shape[3])

    def forward(self, x: np.ndarray, state: Pass) -> np.ndarray:
        (inside, outside), y = self.sides, self.y[state.first : state.first + len(x)]
        self.kernels.forward(self._as_computed(x, inside), self._as_computed(y, outside), state)
        return y

    def backward(self, x: np.ndarray, dy: np.ndarray, state: Pass, need_dx: bool) -> np.ndarray | None:
        (inside, outside), y, dx = self.sides, self.y[state.first : state.first + len(x)], self.dx[: len(x)]
        x, of_input = self._as_computed(x, inside), self._as_computed(dx, inside)
        y, dy = self._as_computed(y, outside), self._as_computed(dy, outside)
        self.kernels.backward(x, y, dy, of_input, need_dx, state)
        return dx if need_dx else None


class Conv1d(Conv2d):
    """:class:`Conv2d` over sequences (n, 1, T, C), with scalar hyper-parameters; its weight is (out, in, kernel)."""

    axes = 1
