"""Gradients of a convolution (:func:`data_gradient`, :func:`weight_gradient`); see :mod:`psframe.nn.conv_loops`."""

import numpy as np

from psframe.nn.conv_window import PANEL, source
from psframe.nn.jit import inline, inner
from psframe.nn.lanes import pointer
from psframe.nn.microkernel import multiply_add
from psframe.nn.parts import columns_of, copy, share, zero_where_off


@inner
def data_gradient(part, n_parts, types, dy, packed, dx, window, images):
    """Write the input's gradient to ``dx`` (n, H, W, C).

    A row is the sum over the windows that reach it: a product whose columns are a window's columns and channels, added
    at the window's place in a padded row.
    """
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
    """Compute a block of columns of a band, in chunks of window rows whose weights stay in the L2 cache."""
    lanes, rows, last_rows, vectors, tail = types
    (_, height, n_columns, out), (s, row, n_band, pitch, column) = shape, at
    width, step = len(lanes) * len(vectors) + len(tail), window.column_step * c
    chunk = max(1, PANEL // (out * width))
    for a in range(0, window.rows, chunk):
        for i in range(n_band):
            # this row is row ``first`` of the nearest window that reaches it, ``first + row_step`` of the next
            nearest, first = divmod(row + i + window.row_padding, window.row_step)
            low = max(a, nearest - height + 1)
            n_i = min(a + chunk, nearest + 1, -(-(window.rows - first) // window.row_step)) - low
            begin = ((s * height + nearest - low) * n_columns) * out
            panel = (column * window.rows + (first + low * window.row_step) * width) * out
            weights = (packed, panel, width, window.row_step * out * width)
            for j in range(0, n_columns if n_i > 0 else 0, len(rows)):
                from_, to = (
                    (dy, begin + j * out, out, 1, -n_columns * out),
                    (image, i * pitch + j * step + column, step),
                )
                if j + len(rows) <= n_columns:
                    multiply_add((lanes, rows, vectors, tail), from_, weights, to, (n_i, out), (None, 0), -np.inf, True)
                else:
                    multiply_add(
                        (lanes, last_rows, vectors, tail), from_, weights, to, (n_i, out), (None, 0), -np.inf, True
                    )


@inner
def weight_gradient(part, n_parts, types, x, y, dy, dw, db, one, relu, more, window, images):
    weight_types, bias_types = types
    _, rows, last_rows, _, _, _ = weight_types
    (n_rows, n_columns, out), (height, _, c) = dy.shape[1:], x.shape[1:]
    run = window.columns * c
    if len(x) == 0 and part == 0 and not more:
        dw[:] = 0
        db[:] = 0
    for s in range(len(x)):
        for row in range(0, n_rows, window.band):
            n_band, add = min(window.band, n_rows - row), more or s + row > 0
            image, top, pitch = source(x, s, row, n_band, n_columns, window, images[part])
            if relu:
                zero_where_off(dy[s, row : row + n_band].reshape(-1), y[s, row : row + n_band].reshape(-1))
            task = 0
            for a in range(window.rows):
                # rows of the band for which this row of the window lies inside the image
                skipped = max(0, -((row * window.row_step - window.row_padding + a) // window.row_step))
                beyond = (height + window.row_padding - a - 1) // window.row_step + 1 - row
                n_i = max(0, min(n_band, beyond) - skipped)
                begin = ((row + skipped) * window.row_step - window.row_padding + a - top) * pitch
                dy_at = ((s * n_rows + row + skipped) * n_columns) * out
                for r in range(0, run, len(rows)):
                    task += 1
                    if task % n_parts != part:
                        continue
                    read = (image, begin + r, 1, window.column_step * c, window.row_step * pitch)
                    to = (pointer(dw), (a * run + r) * out)
                    if r + len(rows) <= run:
                        _rows_weight(weight_types, rows, read, pointer(dy), dy_at, to, (n_i, n_columns, out), add)
                    else:
                        _rows_weight(weight_types, last_rows, read, pointer(dy), dy_at, to, (n_i, n_columns, out), add)
            if part == 0:
                read, dy_at = (pointer(one), 0, 0, 0, 0), (s * n_rows + row) * n_columns * out
                _rows_weight(
                    bias_types, bias_types[1], read, pointer(dy), dy_at, (pointer(db), 0), (n_band, n_columns, out), add
                )


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
