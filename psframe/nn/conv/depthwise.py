"""Depthwise convolution (:class:`Depthwise`): each channel by itself, channels in vector registers.

Samples are staged one by one with zeros around them, so that no window is clipped. The gradient of the input is the
convolution of the output's, spread out by the stride, with the window turned around.
"""

import numpy as np

from psframe.nn.base import Arrays, Pass
from psframe.nn.blocking import blocking
from psframe.nn.conv.depthwise_kernels import correlate, weigh
from psframe.nn.conv.geometry import Geometry
from psframe.nn.jit import inline, inner, jit
from psframe.nn.lanes import pointer
from psframe.nn.pairs import as_number, copy, widened, zero_where_off
from psframe.nn.parts import share
from psframe.nn.workspace import Workspace

_ONE, _FOUR, _EIGHT = ((None,) * n for n in (1, 4, 8))  # pixels side by side


class Depthwise:
    """Convolution of each channel with a window of its own, and its gradients.

    Parameters
    ----------
    geometry : Geometry
        With as many channels in the output as in the input.
    p, g : dict of str to ndarray
        ``weight`` (kernel height, kernel width, 1, C) and ``bias`` (C,), and their gradients.
    relu : bool
        True if a ReLU follows.
    """

    def __init__(self, geometry: Geometry, p: Arrays, g: Arrays, relu: bool, workspace: Workspace):
        (h, w, c), (out_h, out_w, _), (kh, kw), stride, padding, (dh, dw) = geometry
        self.threads, self.relu, self.window = workspace.threads, relu, (kh, kw)
        self.places = stride, padding, (dh, dw)
        self.use(p)
        self.weight_gradient, self.bias_gradient = g["weight"].reshape(kh, kw, c), g["bias"]
        blocks = blocking(1, c, np.dtype(workspace.sums).itemsize).types
        self.lanes, self.tail, sums = blocks[0], blocks[-1], workspace.sums
        rows, columns = (kh - 1) * dh + 1, (kw - 1) * dw + 1
        inside = ((out_h - 1) * stride[0] + rows, (out_w - 1) * stride[1] + columns)
        n = workspace.threads.n
        self.images = workspace.array((n, *inside, c), sums)
        self.outputs = workspace.array((n, h + rows - 1, w + columns - 1, c), sums)
        self.taps, self.rooms = (None,) * kw, workspace.array((n, c), sums)
        #: of each thread, what a pass reads of the parameters, as numbers
        self.weights, self.biases = workspace.array((n, kh, kw, c), sums), workspace.array((n, c), sums)

    def use(self, p: Arrays) -> None:
        self.weight, self.bias = p["weight"].reshape(*self.window, -1), p["bias"]

    def forward(self, x: np.ndarray, y: np.ndarray, state: Pass) -> None:
        """Write the output to ``y``."""
        floor = 0.0 if self.relu else -np.inf
        self.threads.run(
            forward, self.lanes, self.tail, x, self.weight, self.bias, floor, y, *self.places, self.images,
            self.weights, self.biases,
        )  # fmt: skip

    def backward(
        self, x: np.ndarray, y: np.ndarray, dy: np.ndarray, dx: np.ndarray, need_dx: bool, state: Pass
    ) -> None:
        """Write the gradients; with ``state.adds``, add those of the parameters."""
        if self.relu:
            self.threads.run(off, dy, y)
        self.threads.run(
            weight_gradient, self.lanes, self.tail, self.taps, x, dy, self.weight_gradient, self.bias_gradient,
            state.adds, *self.places, self.images, self.rooms,
        )  # fmt: skip
        if need_dx:
            self.threads.run(
                data_gradient, self.lanes, self.tail, dy, self.weight, dx, *self.places, self.outputs,
                self.weights, self.biases,
            )  # fmt: skip


@jit
def off(part, n_parts, dy, y):
    """Zero ``dy`` where ``y`` is at most 0, of a ReLU that was applied to it."""
    for s in share(len(dy), part, n_parts):
        zero_where_off(dy[s].reshape(-1), y[s].reshape(-1))


@jit
def forward(
    part, n_parts, lanes, tail, x, weight, bias, floor, y, stride, padding, dilation, images, weights, biases
):  # fmt: skip
    """Write the convolution of ``x`` (n, H, W, C) to ``y`` (n, H', W', C), at least ``floor``.

    ``images`` are buffers for a sample with zeros around it, ``weights`` and ``biases`` for the parameters as numbers;
    all (n_parts, ...).
    """
    image, weight, bias = images[part], as_numbers(weight, weights[part], False), widened(bias, part, biases)
    image[...] = 0
    for s in share(len(x), part, n_parts):
        stage(x[s], (1, 1), padding, image)
        convolve(lanes, tail, image, weight, bias, floor, y[s], stride, dilation)


@jit
def data_gradient(
    part, n_parts, lanes, tail, dy, weight, dx, stride, padding, dilation, outputs, weights, biases
):  # fmt: skip
    """Write the gradient of the input: by weights whose rows and columns are in reverse order."""
    output, (kh, kw, _) = outputs[part], weight.shape
    turned, none = as_numbers(weight, weights[part], True), biases[part]
    output[...] = 0
    none[:] = 0
    before = (kh - 1) * dilation[0] - padding[0], (kw - 1) * dilation[1] - padding[1]
    for s in share(len(dy), part, n_parts):
        stage(dy[s], stride, before, output)
        convolve(lanes, tail, output, turned, none, -np.inf, dx[s], (1, 1), dilation)


@jit
def weight_gradient(
    part, n_parts, lanes, tail, taps, x, dy, dw, db, add, stride, padding, dilation, images, rooms
):  # fmt: skip
    """Write, or with ``add`` add, the gradients of weights and bias, summed sample by sample.

    Parts are of the channels, since the order of samples is that of a sum. ``taps`` has the length of a window's row.
    """
    c = dw.shape[2]
    n_blocks, image = -(-c // len(lanes)), images[part]
    own = share(n_blocks, part, n_parts)
    begin, end = own.start * len(lanes), min(c, own.stop * len(lanes))
    image[...] = 0
    if not add:
        dw[:, :, begin:end] = 0
        db[begin:end] = 0
    for s in range(len(x)):
        stage(x[s], (1, 1), padding, image)
        for block in own:
            channel = block * len(lanes)
            if channel + len(lanes) <= c:
                of_channels((lanes, (None,), (), taps), image, dy, s, channel, dw, stride, dilation)
            elif len(tail):
                of_channels((lanes, (), tail, taps), image, dy, s, channel, dw, stride, dilation)
        of_bias, given = rooms[part], dy[s].reshape(-1, c)
        of_bias[begin:end] = 0
        for place in range(len(given)):
            for channel in range(begin, end):
                of_bias[channel] += as_number(given[place, channel])
        for channel in range(begin, end):
            db[channel] += of_bias[channel]


@inline
def of_channels(block, image, dy, s, channel, dw, stride, dilation):
    """Add a sample's gradients of the weights of a block of channels, a row of the window at a time."""
    (_, pitch, c), (_, out_h, out_w, _), (kh, kw, _) = image.shape, dy.shape, dw.shape
    for row in range(kh):
        at = row * dilation[0] * pitch * c + channel
        correlate(
            block, (out_h, out_w), (pointer(image), at, stride[0] * pitch * c, stride[1] * c, dilation[1] * c),
            (pointer(dy), s * out_h * out_w * c + channel, out_w * c, c), (pointer(dw), row * kw * c + channel, c),
        )  # fmt: skip


@inner
def as_numbers(given, room, turns):
    """Write parameters (..., C) as numbers to ``room``, with ``turns`` the places in reverse order; return it."""
    from_, to = given.reshape(-1, given.shape[-1]), room.reshape(-1, given.shape[-1])
    for place in range(len(to)):
        copy(to.shape[1], from_[len(to) - 1 - place if turns else place], 0, to[place], 0)
    return room


@inner
def stage(x, step, before, image):
    """Copy a sample (H, W, C) to ``image``, ``step`` apart, behind ``before`` rows and columns; what is out is left."""
    (h, w, c), (rows, columns, _) = x.shape, image.shape
    first = max(0, -(before[1] // step[1]))
    end = max(first, min(w, (columns - before[1] + step[1] - 1) // step[1]))
    for i in range(h):
        row = before[0] + i * step[0]
        if 0 <= row < rows:
            to, given = image[row].reshape(-1), x[i, first:end].reshape(-1)
            begin = (before[1] + first * step[1]) * c
            if step[1] == 1:
                copy(len(given), given, 0, to, begin)
            else:
                for j in range(end - first):
                    copy(c, given, j * c, to, begin + j * step[1] * c)


@inner
def convolve(lanes, tail, image, weight, bias, floor, y, stride, dilation):
    """Write the convolution of a staged sample to ``y`` (H', W', C), some pixels of a row at a time."""
    out_w, c = y.shape[1:]
    n_full = c - len(tail)
    for i in range(len(y)):
        for channel in range(0, n_full, len(lanes)):
            j = 0
            while j + 8 <= out_w:
                pixels((lanes, (None,), (), _EIGHT), image, weight, bias, floor, y, i, j, channel, stride, dilation)
                j += 8
            while j + 4 <= out_w:
                pixels((lanes, (None,), (), _FOUR), image, weight, bias, floor, y, i, j, channel, stride, dilation)
                j += 4
            while j < out_w:
                pixels((lanes, (None,), (), _ONE), image, weight, bias, floor, y, i, j, channel, stride, dilation)
                j += 1
        if len(tail):
            for j in range(out_w):
                pixels((lanes, (), tail, _ONE), image, weight, bias, floor, y, i, j, n_full, stride, dilation)


@inline
def pixels(block, image, weight, bias, floor, y, i, j, channel, stride, dilation):
    """Write pixels of a row side by side, from ``j`` on."""
    (_, pitch, c), (kh, kw, _), out_w = image.shape, weight.shape, y.shape[1]
    weigh(
        block, (kh, kw),
        (pointer(image), (i * stride[0] * pitch + j * stride[1]) * c + channel, dilation[0] * pitch * c,
         dilation[1] * c, stride[1] * c),
        (pointer(weight), channel, kw * c, c), (pointer(bias), channel), floor,
        (pointer(y), (i * out_w + j) * c + channel, c),
    )  # fmt: skip
