"""Convolutions and both their gradients, each number of them by :func:`multiply_add`.

Conventions
-----------
Images are C-contiguous, (n, H, W, C); weights are flat, in memory (kernel rows, kernel columns, C, out). Work is cut
into ``n_parts`` that may run at the same time, of which ``part`` is to be done; no sum depends on their number.
``types`` is ``Blocking.types``.

- A convolution's row of pixels is a product: a window's rows are the sum's ``i``, its columns and channels the ``k``.
- Weights are packed first, the columns of one block together, or each row of a block would be a page from the next.
- Rows of a window that lie outside the image are left out; for columns outside, the image is copied with zeros at its
  sides (*staged*), a band of rows at a time that fits into the second cache.
"""

from typing import NamedTuple

import numpy as np

from psframe.nn.jit import inline, inner, jit
from psframe.nn.lanes import pointer
from psframe.nn.microkernel import multiply_add
from psframe.nn.parts import columns_of, copy, share, zero_where_off


class Window(NamedTuple):
    """The places of a window: its size, its steps, and the zeros around the image.

    ``band`` is how many rows of the output are done at a time.
    """

    rows: int
    columns: int
    row_step: int
    column_step: int
    row_padding: int
    column_padding: int
    band: int


@jit
def forward(part, n_parts, phase, types, x, weights, packed, bias, y, pack, relu, window, images):
    """Write the convolution of ``x`` to ``y`` (n, H', W', out), with ``relu`` 0 for what is negative.

    Parameters
    ----------
    phase : int
        0: pack the weights; 1: convolve; -1: both.
    packed : room for the weights
    pack : bool
        Whether they are not there yet.
    images : room to stage a band, (n_parts, ...)
    """
    out = y.shape[3]
    if phase != 1 and pack:
        _pack(part, n_parts, types, weights, (1, len(weights) // out, out), (0, out, 1), packed)
    if phase != 0:
        _forward(part, n_parts, types, x, packed, bias, y, 0.0 if relu else -np.inf, window, images)


@jit
def backward(
    part, n_parts, phase, types, x, y, dy, weights, packed, dw, db, one, dx, relu, need_dx, add, windows, images
):  # fmt: skip
    """Write the gradients of weights and bias and, with ``need_dx``, of the input.

    Parameters
    ----------
    phase : int
        0: prepare ``dy`` and the weights; 1: the gradients; -1: both.
    types : (data_types, weight_types)
    dy : overwritten with ``relu``, which says that y = max(convolution, 0)
    one : an array that holds a 1: the bias is the weight of an input that is always 1
    add : bool
        Whether this is a part of a batch and not the first one, and adds to the gradients of weights and bias.
    windows : (data_window, weight_window)
        Which differ in their bands.
    """
    (data_types, weight_types), (data_window, weight_window), (_, _, _, c), out = types, windows, x.shape, dy.shape[3]
    if phase != 1:
        if relu:
            for s in share(len(dy), part, n_parts):
                zero_where_off(dy[s].reshape(-1), y[s].reshape(-1))
        if need_dx and not add:
            run = data_window.columns * c
            _pack(part, n_parts, data_types, weights, (data_window.rows, out, run), (run * out, 1, out), packed)
    if phase != 0:
        if need_dx:
            _data_gradient(part, n_parts, data_types, dy, packed, dx, data_window, images)
        _weight_gradient(part, n_parts, weight_types, x, dy, dw, db, one, add, weight_window, images)


@inner
def _pack(part, n_parts, types, weights, counts, strides, packed):
    """Copy ``weights`` (n_i, n_k, n_columns), which has these ``strides``, to blocks of columns (n_i, n_k, width)."""
    (n_i, n_k, n_columns), (i_stride, k_stride, stride) = counts, strides
    block, last, n_blocks = columns_of(types, n_columns)
    for number in share(n_blocks + 1, part, n_parts):
        width = block if number < n_blocks else last
        for i in range(n_i):
            panel = packed[(number * block * n_i + i * width) * n_k :]
            matrix = weights[number * block * stride + i * i_stride :]
            if stride == 1:
                for k in range(n_k):
                    for column in range(width):
                        panel[k * width + column] = matrix[k * k_stride + column]
            else:
                for column in range(width):
                    for k in range(n_k):
                        panel[k * width + column] = matrix[k * k_stride + column * stride]


@inline
def _rows_inside(first, n, size):
    """Return which of ``n`` rows from ``first`` on lie in range(size): the first one, counted from 0, and how many."""
    skipped = max(0, -first)
    return skipped, max(0, min(n, size - first) - skipped)


@inner
def _stage(x, s, first, n_rows, padding, width, image):
    """Copy rows of sample ``s`` to ``image`` (n_rows, width, C), with zeros left and right."""
    _, height, inside, c = x.shape
    begin, end = padding * c, min(width, padding + inside) * c
    for i in range(n_rows):
        to = image[i * width * c : (i + 1) * width * c]
        to[:begin] = 0
        copy(end - begin, x.reshape(-1), (s * height + first + i) * inside * c, to, begin)
        to[end:] = 0


@inline
def _source(x, s, row, n_band, n_columns, window, image):
    """Return where a band of output rows reads: pointer, its first row of the image, and numbers from row to row."""
    _, height, width, c = x.shape
    top = row * window.row_step - window.row_padding
    skipped, n_rows = _rows_inside(top, (n_band - 1) * window.row_step + window.rows, height)
    if window.column_padding == 0:
        return pointer(x), -s * height, width * c
    width = (n_columns - 1) * window.column_step + window.columns
    _stage(x, s, top + skipped, n_rows, window.column_padding, width, image)
    return pointer(image), top + skipped, width * c


@inner
def _forward(part, n_parts, types, x, packed, bias, y, floor, window, images):
    lanes, rows, _, vectors, last_vectors, tail = types
    n_rows, n_columns, out = y.shape[1:]
    block, _, n_blocks = columns_of(types, out)
    depth, c = window.rows * window.columns * x.shape[3], x.shape[3]
    for s in share(len(x), part, n_parts):
        for row in range(0, n_rows, window.band):
            n_band = min(window.band, n_rows - row)
            read = _source(x, s, row, n_band, n_columns, window, images[part])
            for number in range(n_blocks + 1):
                at = (s * n_rows * n_columns * out + number * block, row, n_band, n_columns, out)
                panel, start = (pointer(packed), number * block * depth), (pointer(bias), number * block)
                if number < n_blocks:
                    shape = (lanes, rows, vectors, ())
                    _rows_forward(shape, read, x.shape[1], c, panel, pointer(y), at, start, floor, window)
                else:
                    shape = (lanes, rows, last_vectors, tail)
                    _rows_forward(shape, read, x.shape[1], c, panel, pointer(y), at, start, floor, window)


@inline
def _rows_forward(block, read, height, c, panel, y, at, start, floor, window):
    lanes, rows, vectors, tail = block
    (image, top, pitch), (weights, first), (place, row, n_band, n_columns, out) = read, panel, at
    width, run = len(lanes) * len(vectors) + len(tail), window.columns * c
    for i in range(row, row + n_band):
        skipped, n_i = _rows_inside(i * window.row_step - window.row_padding, window.rows, height)
        begin = (i * window.row_step - window.row_padding + skipped - top) * pitch
        for j in range(0, n_columns, len(rows)):
            j = min(j, n_columns - len(rows))  # the last block repeats pixels of the one before
            step = window.column_step * c
            multiply_add(
                block,
                (image, begin + j * step, step, 1, pitch),
                (weights, first + skipped * run * width, width, width * run),
                (y, place + (i * n_columns + j) * out, out),
                (n_i, run), start, floor, False,
            )  # fmt: skip


@inner
def _data_gradient(part, n_parts, types, dy, packed, dx, window, images):
    """Every row of ``dx`` is the sum over the windows that reach it: a product whose columns are a window's columns and
    channels, added where the window lies, in a row with room at its sides."""
    lanes, rows, last_rows, vectors, last_vectors, tail = types
    height, width, c = dx.shape[1:]
    image, margin = images[part], window.column_padding * c
    pitch = max((dy.shape[2] - 1) * window.column_step + window.columns, width + window.column_padding) * c
    block, _, n_blocks = columns_of(types, window.columns * c)
    for s in share(len(dy), part, n_parts):
        for row in range(0, height, window.band):
            n_band = min(window.band, height - row)
            image[: n_band * pitch] = 0
            for number in range(n_blocks + 1):
                at = (s, row, n_band, pitch, number * block)
                if number < n_blocks:
                    shape = (lanes, rows, last_rows, vectors, ())
                    _rows_data(shape, pointer(dy), dy.shape, c, pointer(packed), pointer(image), at, window)
                else:
                    shape = (lanes, rows, last_rows, last_vectors, tail)
                    _rows_data(shape, pointer(dy), dy.shape, c, pointer(packed), pointer(image), at, window)
            for i in range(n_band):
                copy(width * c, image, i * pitch + margin, dx[s, row + i].reshape(-1), 0)


@inline
def _rows_data(types, dy, shape, c, packed, image, at, window):
    lanes, rows, last_rows, vectors, tail = types
    (_, height, n_columns, out), (s, row, n_band, pitch, column) = shape, at
    width = len(lanes) * len(vectors) + len(tail)
    for i in range(n_band):
        # of the windows that reach this row, it is row ``first`` of the nearest, ``first + row_step`` of the next above
        nearest, first = divmod(row + i + window.row_padding, window.row_step)
        skipped = max(0, nearest - height + 1)
        n_i = min(nearest + 1, -(-(window.rows - first) // window.row_step)) - skipped
        begin = ((s * height + nearest - skipped) * n_columns) * out
        panel = (column * window.rows + (first + skipped * window.row_step) * width) * out
        weights = (packed, panel, width, window.row_step * out * width)
        step = window.column_step * c
        for j in range(0, n_columns, len(rows)):
            a, to = (dy, begin + j * out, out, 1, -n_columns * out), (image, i * pitch + j * step + column, step)
            if j + len(rows) <= n_columns:
                multiply_add((lanes, rows, vectors, tail), a, weights, to, (n_i, out), (None, 0), -np.inf, True)
            else:
                multiply_add((lanes, last_rows, vectors, tail), a, weights, to, (n_i, out), (None, 0), -np.inf, True)


@inner
def _weight_gradient(part, n_parts, types, x, dy, dw, db, one, more, window, images):
    _, rows, last_rows, _, _, _ = types
    (n_rows, n_columns, out), (height, _, c) = dy.shape[1:], x.shape[1:]
    run = window.columns * c
    if len(x) == 0 and part == 0 and not more:
        dw[:] = 0
        db[:] = 0
    for s in range(len(x)):
        for row in range(0, n_rows, window.band):
            n_band, add = min(window.band, n_rows - row), more or s + row > 0
            image, top, pitch = _source(x, s, row, n_band, n_columns, window, images[part])
            task = 0
            for a in range(window.rows):
                # of the band's rows, those for which this row of the window lies inside the image
                skipped = max(0, -((row * window.row_step - window.row_padding + a) // window.row_step))
                beyond = (height + window.row_padding - a - 1) // window.row_step + 1 - row
                n_i = max(0, min(n_band, beyond) - skipped)
                begin = ((row + skipped) * window.row_step - window.row_padding + a - top) * pitch
                given = ((s * n_rows + row + skipped) * n_columns) * out
                for r in range(0, run, len(rows)):
                    task += 1
                    if task % n_parts != part:
                        continue
                    read = (image, begin + r, 1, window.column_step * c, window.row_step * pitch)
                    to = (pointer(dw), (a * run + r) * out)
                    if r + len(rows) <= run:
                        _rows_weight(types, rows, read, pointer(dy), given, to, (n_i, n_columns, out), add)
                    else:
                        _rows_weight(types, last_rows, read, pointer(dy), given, to, (n_i, n_columns, out), add)
            if part == 0:
                read, given = (pointer(one), 0, 0, 0, 0), (s * n_rows + row) * n_columns * out
                _rows_weight(types, rows[:1], read, pointer(dy), given, (pointer(db), 0), (n_band, n_columns, out), add)


@inline
def _rows_weight(types, rows, read, dy, given, to, counts, add):
    lanes, _, _, vectors, last_vectors, tail = types
    (weights, place), (n_i, n_columns, out) = to, counts
    block, _, n_blocks = columns_of(types, out)
    for number in range(n_blocks + 1):
        column = number * block
        b, c = (dy, given + column, out, n_columns * out), (weights, place + column, out)
        if number < n_blocks:
            multiply_add((lanes, rows, vectors, ()), read, b, c, (n_i, n_columns), (None, 0), -np.inf, add)
        else:
            multiply_add((lanes, rows, last_vectors, tail), read, b, c, (n_i, n_columns), (None, 0), -np.inf, add)
