"""Loops of the pooling layers (:func:`max_forward` and others): channels innermost, in vector registers.

Conventions
-----------
``x`` and ``dx`` are (n, H, W, C); ``y``, ``dy`` and ``argmax`` are (n, H', W', C); ``kernel`` and ``stride`` are
(height, width). Windows are clipped at the input's end. A call does ``part`` of ``n_parts``. ``types`` is
``Blocking.types`` for the channels.

A gradient is gathered, not scattered: a pixel sums over the windows that reach it, and is written once. Where windows
lie side by side (``stride`` is ``kernel``), a window writes its pixels.
"""

from psframe.nn.jit import inline, jit
from psframe.nn.lanes import pointer
from psframe.nn.parts import columns_of, share
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
def max_forward(part, n_parts, types, x, y, argmax, kernel, stride, relu):
    """Write the maxima to ``y``, and to ``argmax`` the number of their cell in the window, counted row by row.

    With ``relu``, a maximum of at most 0 becomes 0, and has no cell (-1).
    """
    (_, _, w, c), (_, n_i, n_j, _) = x.shape, y.shape
    (lanes, _, _, vectors, last_vectors, tail), (block, _, n_blocks) = types, columns_of(types, c)
    for s in share(len(x), part, n_parts):
        for i in range(n_i):
            for j in range(n_j):
                counts, x_at, y_at = window(s, i, j, x.shape, y.shape, kernel, stride)
                for number in range(n_blocks + 1):
                    channel = number * block
                    read = (pointer(x), x_at + channel, w * c, c)
                    write, where = (pointer(y), y_at + channel), (pointer(argmax), y_at + channel)
                    if number < n_blocks:
                        largest((lanes, vectors, ()), counts, read, kernel[1], write, where, relu)
                    else:
                        largest((lanes, last_vectors, tail), counts, read, kernel[1], write, where, relu)


@jit
def max_backward(part, n_parts, types, dy, dx, argmax, kernel, stride):
    """Write to each pixel of ``dx`` the sum of ``dy`` over the windows of which it is the maximum."""
    (_, h, w, c), (_, n_i, n_j, _) = dx.shape, dy.shape
    (lanes, _, _, vectors, last_vectors, tail), (block, _, n_blocks) = types, columns_of(types, c)
    step = stride[0] * kernel[1], stride[1]
    for s in share(len(dy), part, n_parts):
        for row in range(h):
            i, counts_i = windows_over(row // stride[0], (kernel[0] - 1 - row % stride[0]) // stride[0], n_i)
            for phase in range(stride[1]):
                reach = (kernel[1] - 1 - phase) // stride[1]
                for place in range((w - phase + stride[1] - 1) // stride[1]):
                    column = place * stride[1] + phase
                    j, counts_j = windows_over(place, reach, n_j)
                    cell = ((row - i * stride[0]) * kernel[1] + column - j * stride[1], step[0], step[1])
                    counts = counts_i, counts_j
                    at, y_at = ((s * h + row) * w + column) * c, ((s * n_i + i) * n_j + j) * c
                    for number in range(n_blocks + 1):
                        channel = number * block
                        read, write = (pointer(dy), y_at + channel, n_j * c, c), (pointer(dx), at + channel)
                        where = (pointer(argmax), y_at + channel, n_j * c, c)
                        if number < n_blocks:
                            sum_where((lanes, vectors, ()), counts, read, where, cell, write)
                        else:
                            sum_where((lanes, last_vectors, tail), counts, read, where, cell, write)


@jit
def max_backward_apart(part, n_parts, types, dy, dx, argmax, kernel, stride):
    """As :func:`max_backward`, where ``stride`` is ``kernel``."""
    (_, h, w, c), (_, n_i, n_j, _) = dx.shape, dy.shape
    (lanes, _, _, vectors, last_vectors, tail), (block, _, n_blocks) = types, columns_of(types, c)
    for s in share(len(dy), part, n_parts):
        for i in range(n_i):
            for j in range(n_j):
                counts, at, y_at = window(s, i, j, dx.shape, dy.shape, kernel, stride)
                for number in range(n_blocks + 1):
                    channel = number * block
                    write = (pointer(dx), at + channel, w * c, c)
                    read, where = (pointer(dy), y_at + channel), (pointer(argmax), y_at + channel)
                    if number < n_blocks:
                        write_where((lanes, vectors, ()), counts, read, where, kernel[1], write)
                    else:
                        write_where((lanes, last_vectors, tail), counts, read, where, kernel[1], write)
        # what no window reaches
        dx[s, n_i * kernel[0] :] = 0
        if n_j * kernel[1] < w:
            for row in range(h):
                dx[s, row, n_j * kernel[1] :] = 0


@jit
def avg_forward(part, n_parts, types, x, y, kernel, stride):
    """Write the means of the windows to ``y``."""
    (_, _, w, c), (_, n_i, n_j, _) = x.shape, y.shape
    for s in share(len(x), part, n_parts):
        for i in range(n_i):
            for j in range(n_j):
                counts, x_at, y_at = window(s, i, j, x.shape, y.shape, kernel, stride)
                read, write = (pointer(x), x_at, w * c, c), (pointer(y), y_at)
                _sum(types, c, counts, read, counts[0] * counts[1], write)


@jit
def avg_backward(part, n_parts, types, dy, dx, kernel, stride):
    """Write to each pixel of ``dx`` the sum of ``dy`` over the windows that reach it, divided by the windows' sizes.

    ``dy`` is overwritten.
    """
    (_, h, w, c), (_, n_i, n_j, _) = dx.shape, dy.shape
    for s in share(len(dy), part, n_parts):
        for i in range(n_i):
            for j in range(n_j):
                size = min(kernel[0], h - i * stride[0]) * min(kernel[1], w - j * stride[1])
                y_at = ((s * n_i + i) * n_j + j) * c
                _sum(types, c, (1, 1), (pointer(dy), y_at, 0, 0), size, (pointer(dy), y_at))
        for row in range(h):
            i, counts_i = windows_over(row // stride[0], (kernel[0] - 1 - row % stride[0]) // stride[0], n_i)
            for phase in range(stride[1]):
                reach = (kernel[1] - 1 - phase) // stride[1]
                for place in range((w - phase + stride[1] - 1) // stride[1]):
                    j, counts_j = windows_over(place, reach, n_j)
                    at = ((s * h + row) * w + place * stride[1] + phase) * c
                    y_at = ((s * n_i + i) * n_j + j) * c
                    read, write = (pointer(dy), y_at, n_j * c, c), (pointer(dx), at)
                    _sum(types, c, (counts_i, counts_j), read, 1, write)


@inline
def _sum(types, c, counts, x, size, y):
    """Write the sum of some cells, divided by ``size``, for all channels; operands as for ``sum_cells``."""
    (lanes, _, _, vectors, last_vectors, tail), (block, _, n_blocks) = types, columns_of(types, c)
    (read, x_at, a_stride, b_stride), (write, y_at) = x, y
    for number in range(n_blocks):
        from_, to = (read, x_at + number * block, a_stride, b_stride), (write, y_at + number * block)
        sum_cells((lanes, vectors, ()), counts, from_, size, to)
    from_, to = (read, x_at + n_blocks * block, a_stride, b_stride), (write, y_at + n_blocks * block)
    sum_cells((lanes, last_vectors, tail), counts, from_, size, to)
