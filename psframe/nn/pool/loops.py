"""Loops of the pooling layers (:func:`max_forward` and others): channels innermost, in vector registers.

Conventions
-----------
``x`` and ``dx`` are (n, H, W, C); ``y``, ``dy`` and ``argmax`` are (n, H', W', C); ``kernel`` and ``stride`` are
(height, width). Windows are clipped at the input's end. A call does ``part`` of ``n_parts``. ``lanes`` is a tuple of
the length of a vector, ``tail`` one of the length of the remainder of C.

A gradient is gathered, not scattered: a pixel sums over the windows that reach it, and is written once. Where windows
lie side by side (``stride`` is ``kernel``), a window writes its pixels.
"""

from psframe.nn.jit import inline, jit
from psframe.nn.lanes import pointer
from psframe.nn.parts import share
from psframe.nn.pool.kernels import largest, sum_cells, sum_where, write_where


@inline
def windows_over(place, reach, n_windows):
    """Return the first of the windows ``place - reach`` to ``place`` that exist, and their number."""
    first = max(0, place - reach)
    return first, max(0, min(n_windows - 1, place) - first + 1)


@inline
def window(s, i, j, input_shape, output_shape, kernel, stride):
    """Return rows and columns of window (i, j) of sample ``s``, and where its first cell and its output lie."""
    (_, h, w, c), (_, n_i, n_j, _) = input_shape, output_shape
    top, left = i * stride[0], j * stride[1]
    counts = (min(kernel[0], h - top), min(kernel[1], w - left))
    return counts, ((s * h + top) * w + left) * c, ((s * n_i + i) * n_j + j) * c


@jit
def max_forward(part, n_parts, lanes, tail, x, y, argmax, kernel, stride, relu):
    """Write the maxima to ``y``, and to ``argmax`` the number of their cell in the window, counted row by row.

    With ``relu``, a maximum of at most 0 becomes 0, and has no cell (-1).
    """
    (_, _, w, c), (_, n_i, n_j, _) = x.shape, y.shape
    n_full = c - len(tail)
    for s in share(len(x), part, n_parts):
        for i in range(n_i):
            for j in range(n_j):
                counts, x_at, y_at = window(s, i, j, x.shape, y.shape, kernel, stride)
                for channel in range(0, n_full, len(lanes)):
                    largest(
                        (lanes, (None,), ()), counts, (pointer(x), x_at + channel, w * c, c), kernel[1],
                        (pointer(y), y_at + channel), (pointer(argmax), y_at + channel), relu,
                    )  # fmt: skip
                if len(tail):
                    largest(
                        (lanes, (), tail), counts, (pointer(x), x_at + n_full, w * c, c), kernel[1],
                        (pointer(y), y_at + n_full), (pointer(argmax), y_at + n_full), relu,
                    )  # fmt: skip


@jit
def max_backward(part, n_parts, lanes, tail, dy, dx, argmax, kernel, stride):
    """Write to each pixel of ``dx`` the sum of ``dy`` over the windows of which it is the maximum."""
    (_, h, w, c), (_, n_i, n_j, _) = dx.shape, dy.shape
    n_full, step = c - len(tail), (stride[0] * kernel[1], stride[1])
    for s in share(len(dy), part, n_parts):
        for row in range(h):
            i, counts_i = windows_over(row // stride[0], (kernel[0] - 1 - row % stride[0]) // stride[0], n_i)
            for phase in range(stride[1]):
                reach = (kernel[1] - 1 - phase) // stride[1]
                for place in range((w - phase + stride[1] - 1) // stride[1]):
                    column = place * stride[1] + phase
                    j, counts_j = windows_over(place, reach, n_j)
                    cell = ((row - i * stride[0]) * kernel[1] + column - j * stride[1], step[0], step[1])
                    at, y_at = ((s * h + row) * w + column) * c, ((s * n_i + i) * n_j + j) * c
                    for channel in range(0, n_full, len(lanes)):
                        sum_where(
                            (lanes, (None,), ()), (counts_i, counts_j), (pointer(dy), y_at + channel, n_j * c, c),
                            (pointer(argmax), y_at + channel, n_j * c, c), cell, (pointer(dx), at + channel),
                        )  # fmt: skip
                    if len(tail):
                        sum_where(
                            (lanes, (), tail), (counts_i, counts_j), (pointer(dy), y_at + n_full, n_j * c, c),
                            (pointer(argmax), y_at + n_full, n_j * c, c), cell, (pointer(dx), at + n_full),
                        )  # fmt: skip


@jit
def max_backward_apart(part, n_parts, lanes, tail, dy, dx, argmax, kernel, stride):
    """As :func:`max_backward`, where ``stride`` is ``kernel``."""
    (_, h, w, c), (_, n_i, n_j, _) = dx.shape, dy.shape
    n_full = c - len(tail)
    for s in share(len(dy), part, n_parts):
        for i in range(n_i):
            for j in range(n_j):
                counts, at, y_at = window(s, i, j, dx.shape, dy.shape, kernel, stride)
                for channel in range(0, n_full, len(lanes)):
                    write_where(
                        (lanes, (None,), ()), counts, (pointer(dy), y_at + channel), (pointer(argmax), y_at + channel),
                        kernel[1], (pointer(dx), at + channel, w * c, c),
                    )  # fmt: skip
                if len(tail):
                    write_where(
                        (lanes, (), tail), counts, (pointer(dy), y_at + n_full), (pointer(argmax), y_at + n_full),
                        kernel[1], (pointer(dx), at + n_full, w * c, c),
                    )  # fmt: skip
        # what no window reaches
        dx[s, n_i * kernel[0] :] = 0
        if n_j * kernel[1] < w:
            for row in range(h):
                dx[s, row, n_j * kernel[1] :] = 0


@jit
def avg_forward(part, n_parts, lanes, tail, x, y, kernel, stride):
    """Write the means of the windows to ``y``."""
    (_, _, w, c), (_, n_i, n_j, _) = x.shape, y.shape
    n_full = c - len(tail)
    for s in share(len(x), part, n_parts):
        for i in range(n_i):
            for j in range(n_j):
                counts, x_at, y_at = window(s, i, j, x.shape, y.shape, kernel, stride)
                size = counts[0] * counts[1]
                for channel in range(0, n_full, len(lanes)):
                    read, write = (pointer(x), x_at + channel, w * c, c), (pointer(y), y_at + channel)
                    sum_cells((lanes, (None,), ()), counts, read, size, write)
                if len(tail):
                    read, write = (pointer(x), x_at + n_full, w * c, c), (pointer(y), y_at + n_full)
                    sum_cells((lanes, (), tail), counts, read, size, write)


@jit
def avg_backward(part, n_parts, lanes, tail, dy, dx, kernel, stride):
    """Write to each pixel of ``dx`` the sum of ``dy`` over the windows that reach it, divided by the windows' sizes.

    ``dy`` is overwritten.
    """
    (_, h, w, c), (_, n_i, n_j, _) = dx.shape, dy.shape
    n_full = c - len(tail)
    for s in share(len(dy), part, n_parts):
        for i in range(n_i):
            for j in range(n_j):
                size = min(kernel[0], h - i * stride[0]) * min(kernel[1], w - j * stride[1])
                y_at = ((s * n_i + i) * n_j + j) * c
                for channel in range(0, n_full, len(lanes)):
                    read, write = (pointer(dy), y_at + channel, 0, 0), (pointer(dy), y_at + channel)
                    sum_cells((lanes, (None,), ()), (1, 1), read, size, write)
                if len(tail):
                    read, write = (pointer(dy), y_at + n_full, 0, 0), (pointer(dy), y_at + n_full)
                    sum_cells((lanes, (), tail), (1, 1), read, size, write)
        for row in range(h):
            i, counts_i = windows_over(row // stride[0], (kernel[0] - 1 - row % stride[0]) // stride[0], n_i)
            for phase in range(stride[1]):
                reach = (kernel[1] - 1 - phase) // stride[1]
                for place in range((w - phase + stride[1] - 1) // stride[1]):
                    j, counts_j = windows_over(place, reach, n_j)
                    at = ((s * h + row) * w + place * stride[1] + phase) * c
                    y_at = ((s * n_i + i) * n_j + j) * c
                    for channel in range(0, n_full, len(lanes)):
                        read, write = (pointer(dy), y_at + channel, n_j * c, c), (pointer(dx), at + channel)
                        sum_cells((lanes, (None,), ()), (counts_i, counts_j), read, 1, write)
                    if len(tail):
                        read, write = (pointer(dy), y_at + n_full, n_j * c, c), (pointer(dx), at + n_full)
                        sum_cells((lanes, (), tail), (counts_i, counts_j), read, 1, write)
