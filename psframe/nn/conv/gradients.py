"""Gradients of a convolution (:func:`data_gradient`, :func:`weight_gradient`); see :mod:`psframe.nn.conv.loops`."""

import numpy as np

from psframe.nn.conv.window import output, panel_rows, source
from psframe.nn.jit import inline, inner
from psframe.nn.lanes import pointer
from psframe.nn.microkernel import multiply_add
from psframe.nn.pairs import copy, per, zero_where_off
from psframe.nn.parts import columns_of, share


@inner
def data_gradient(part, n_parts, types, dy, packed, dx, window, sums):
    """Write the input's gradient to ``dx`` (n, H, W, C).

    A row is the sum over the windows that reach it: a product whose columns are a window's columns and channels, added
    at the window's place in a padded row: ``window.together`` columns at a time, window by window from left to right.
    """
    height, width, c = dx.shape[1:]
    image, margin = sums[part], window.column_padding * c
    pitch = max((dy.shape[2] - 1) * window.column_step + window.columns, width + window.column_padding) * c
    lanes, rows, last_rows, vectors, last_vectors, tail = types
    block, _, n_blocks = columns_of(types, window.together)
    for s in share(len(dy), part, n_parts):
        for row in range(0, height, window.band):
            n_band = min(window.band, height - row)
            image[: n_band * pitch] = 0
            for column in range(0, window.columns * c, window.together):
                for number in range(n_blocks + 1):
                    at = (s, row, n_band, pitch, column + number * block)
                    if number < n_blocks:
                        shape = (lanes, rows, last_rows, vectors, ())
                        _rows_data(
                            shape, pointer(dy), dy.shape, c, pointer(packed), per(packed), pointer(image), at, window
                        )
                    else:
                        shape = (lanes, rows, last_rows, last_vectors, tail)
                        _rows_data(
                            shape, pointer(dy), dy.shape, c, pointer(packed), per(packed), pointer(image), at, window
                        )
            for i in range(n_band):
                copy(width * c, image, i * pitch + margin, dx[s, row + i].reshape(-1), 0)


@inline
def _rows_data(types, dy, shape, c, packed, in_one, image, at, window):
    """Compute a block of columns of a band, in chunks of window rows whose weights stay in the L2 cache."""
    lanes, rows, last_rows, vectors, tail = types
    (_, height, n_columns, out), (s, row, n_band, pitch, column) = shape, at
    width, step = len(lanes) * len(vectors) + len(tail), window.column_step * c
    chunk = panel_rows(out, window.together)
    steps = -(-out // in_one)
    for a in range(0, window.rows, chunk):
        for i in range(n_band):
            # this row is row ``first`` of the nearest window that reaches it, ``first + row_step`` of the next
            nearest, first = divmod(row + i + window.row_padding, window.row_step)
            low = max(a, nearest - height + 1)
            n_i = min(a + chunk, nearest + 1, -(-(window.rows - first) // window.row_step)) - low
            begin = ((s * height + nearest - low) * n_columns) * out
            panel = (column * window.rows + (first + low * window.row_step) * width) * steps
            weights = (packed, panel, width, window.row_step * steps * width)
            for j in range(0, n_columns if n_i > 0 else 0, len(rows)):
                from_, to = (
                    (dy, begin + j * out, out, in_one, -n_columns * out),
                    (image, i * pitch + j * step + column, step),
                )
                if j + len(rows) <= n_columns:
                    multiply_add(
                        (lanes, rows, vectors, tail), from_, weights, to, (n_i, out), (None, 0), -np.inf, to, True
                    )
                else:
                    multiply_add(
                        (lanes, last_rows, vectors, tail),
                        from_,
                        weights,
                        to,
                        (n_i, out),
                        (None, 0),
                        -np.inf,
                        to,
                        True,
                    )


@inner
def weight_gradient(part, n_parts, types, x, y, dy, dw, db, one, relu, more, window, images, outputs):
    """Write, or with ``more`` add, the gradients of weights and bias: sample by sample, band by band.

    In bfloat16, pair of samples by pair of samples, which are staged in ``images`` and ``outputs``.
    """
    if len(x) == 0 and part == 0 and not more:
        dw[:] = 0
        db[:] = 0
    for s in range(0, len(x), window.samples):
        for row in range(0, dy.shape[1], window.band):
            at, add = (s, min(window.samples, len(x) - s), row), more or s + row > 0
            _band_weight(
                part, n_parts, types, x, y, dy, dw, db, one, relu, add, at, window, images[part], outputs[part]
            )


@inline
def _band_weight(part, n_parts, types, x, y, dy, dw, db, one, relu, add, at, window, image, room):
    """Add what a band of some samples gives; a block of weights takes them in turn while it is in the L1 cache."""
    (weight_types, bias_types), (s, n, row) = types, at
    _, rows, last_rows, _, _, _ = weight_types
    (n_rows, n_columns, out), (height, _, c) = dy.shape[1:], x.shape[1:]
    n_band, run, n_elements = min(window.band, n_rows - row), window.columns * c, -(-n // per(image))
    if relu:
        for k in range(s, s + n):
            zero_where_off(dy[k, row : row + n_band].reshape(-1), y[k, row : row + n_band].reshape(-1))
    read, top, pitch, of_image = source(x, s, n_elements, row, n_band, n_columns, window, image)
    given, first, of_output = output(dy, s, n_elements, row, n_band, room)
    task = 0
    for a in range(window.rows):
        # rows of the band for which this row of the window lies inside the image
        skipped = max(0, -((row * window.row_step - window.row_padding + a) // window.row_step))
        beyond = (height + window.row_padding - a - 1) // window.row_step + 1 - row
        n_i = max(0, min(n_band, beyond) - skipped)
        begin = ((row + skipped) * window.row_step - window.row_padding + a - top) * pitch
        of_row = (given, first + skipped * n_columns * out, (n_i, n_columns, out))
        for r in range(0, run, len(rows)):
            task += 1
            if task % n_parts != part:
                continue
            from_ = (read, begin + r, 1, window.column_step * c, window.row_step * pitch)
            to = (pointer(dw), (a * run + r) * out)
            if r + len(rows) <= run:
                rows_gradient(weight_types, rows, from_, of_row, to, (n_elements, of_image, of_output), add)
            else:
                rows_gradient(weight_types, last_rows, from_, of_row, to, (n_elements, of_image, of_output), add)
    if part == 0:
        from_, to = (pointer(one), 0, 0, 0, 0), (pointer(db), 0)
        of_band = (given, first, (n_band, n_columns, out))
        rows_gradient(bias_types, bias_types[1], from_, of_band, to, (n_elements, 0, of_output), add)


@inline
def rows_gradient(types, rows, read, given, to, samples, add):
    """Write, or add, what some samples give to some rows of the weights: the sum over their pixels, in order."""
    lanes, _, _, vectors, last_vectors, tail = types
    (x, begin, row, k, i), (dy, dy_at, (n_i, n_columns, out)), (weights, place) = read, given, to
    n, of_image, of_output = samples
    block, _, n_blocks = columns_of(types, out)
    for number in range(n_blocks + 1):
        column = number * block
        c = (weights, place + column, out)
        for s in range(n):
            a = (x, begin + s * of_image, row, k, i)
            b = (dy, dy_at + s * of_output + column, out, n_columns * out)
            if number < n_blocks:
                multiply_add((lanes, rows, vectors, ()), a, b, c, (n_i, n_columns), (None, 0), -np.inf, c, add or s > 0)
            else:
                kind = (lanes, rows, last_vectors, tail)
                multiply_add(kind, a, b, c, (n_i, n_columns), (None, 0), -np.inf, c, add or s > 0)
