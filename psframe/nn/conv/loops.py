"""Entry points of convolutions (:func:`forward`) and their gradients (:func:`backward`), all by :func:`multiply_add`.

Conventions
-----------
Images are C-contiguous, (n, H, W, C). Weights are flat, in memory (kernel rows, kernel columns, C, out). A call does
``part`` of ``n_parts`` that may run concurrently; no sum depends on their number. ``types`` is ``Blocking.types``. A
row of pixels is a product: the rows of a window are the sum's ``i``, its columns and channels the ``k``.
"""

import numpy as np

from psframe.nn.conv.gradients import data_gradient, weight_gradient
from psframe.nn.conv.window import pack, panel_rows, rows_inside, source
from psframe.nn.jit import inline, inner, jit
from psframe.nn.lanes import pointer
from psframe.nn.microkernel import multiply_add
from psframe.nn.pairs import per, room_of, widened, zero_where_off
from psframe.nn.parts import columns_of, share


@jit
def forward(part, n_parts, phase, types, x, weights, packed, bias, wide, zeros, y, packs, relu, window, images, rooms):
    """Write the convolution of ``x`` (n, H, W, C) to ``y`` (n, H', W', out); with ``relu``, negative results are 0.

    Parameters
    ----------
    phase : int
        0: pack the weights; 1: convolve; -1: both.
    packed : buffer for the packed weights
    wide : buffers for the bias in float32, (n_parts, out)
    zeros : zeros, of the shape of ``bias``
    packs : bool
        True if the weights are not packed yet.
    images : staging buffers for a band, (n_parts, ...)
    rooms : float32 buffers for the sums of a block's columns of a band, (n_parts, ...); None for windows of one chunk
    """
    out = y.shape[3]
    if phase != 1 and packs:
        run = window.columns * x.shape[3]
        pack(part, n_parts, types, weights, (window.rows, run, out), (run * out, out, 1), packed)
    if phase != 0:
        bias = widened(bias, part, wide)
        _forward(part, n_parts, types, x, packed, bias, zeros, y, 0.0 if relu else -np.inf, window, images, rooms)


@jit
def backward(
    part, n_parts, phase, types, x, y, dy, weights, packed, dw, db, one, dx, relu, need_dx, add, windows, rooms
):  # fmt: skip
    """Write the gradients of weights and bias and, with ``need_dx``, of the input.

    Parameters
    ----------
    phase : int
        0: prepare ``dy`` and the weights; 1: compute the gradients; -1: both.
    types : (data_types, weight_types, bias_types)
    dy : overwritten if ``relu``, with which y = max(convolution, 0)
    one : an array that holds a 1: the bias is the weight of an input that is always 1
    add : bool
        True for a pass or a part of a batch after the first: it adds to the gradients of weights and bias.
    windows : (data_window, weight_window)
        They differ in their bands.
    rooms : (images, outputs, sums)
        Staging buffers for the input, the output's gradient, and sums of the input's gradient in float32.
    """
    (data_types, weight_types, bias_types), (data_window, weight_window) = types, windows
    (_, _, _, c), out, alone, (images, outputs, sums) = x.shape, dy.shape[3], phase == -1, rooms
    if phase != 1:
        if relu and not alone:
            for s in share(len(dy), part, n_parts):
                zero_where_off(dy[s].reshape(-1), y[s].reshape(-1))
        if need_dx and not add:
            rows, run, columns = data_window.rows, data_window.columns * c, data_window.together
            for column in range(0, run, columns):
                given, to = weights[column * out :], packed[column * rows * -(-out // per(packed)) :]
                pack(part, n_parts, data_types, given, (rows, out, columns), (run * out, 1, out), to)
    if phase != 0:
        # with one thread, each band gets the ReLU's gradient just before its use, while it is in a cache
        types = weight_types, bias_types
        weight_gradient(
            part, n_parts, types, x, y, dy, dw, db, one, relu and alone, add, weight_window, images, outputs
        )
        if need_dx:
            data_gradient(part, n_parts, data_types, dy, packed, dx, data_window, sums)


@inner
def _forward(part, n_parts, types, x, packed, bias, zeros, y, floor, window, images, rooms):
    lanes, rows, last_rows, vectors, last_vectors, tail = types
    n_rows, n_columns, out = y.shape[1:]
    block, _, n_blocks = columns_of(types, out)
    room = room_of(rooms, part)
    c, in_one = x.shape[3], per(packed)
    depth = window.rows * -(-window.columns * c // in_one)
    for s in share(len(x), part, n_parts):
        for row in range(0, n_rows, window.band):
            n_band = min(window.band, n_rows - row)
            read = source(x, s, 1, row, n_band, n_columns, window, images[part])
            for number in range(n_blocks + 1):
                write = (pointer(y), s * n_rows * n_columns * out + number * block, row, n_band, n_columns, out)
                panel, start = (
                    (pointer(packed), number * block * depth),
                    (pointer(bias), pointer(zeros), number * block),
                )
                if number < n_blocks:
                    shape = (lanes, rows, last_rows, vectors, ())
                    _rows_forward(shape, read, x.shape[1], c, panel, in_one, write, start, floor, window, pointer(room))
                else:
                    shape = (lanes, rows, last_rows, last_vectors, tail)
                    _rows_forward(shape, read, x.shape[1], c, panel, in_one, write, start, floor, window, pointer(room))


@inline
def _rows_forward(types, read, height, c, panel, in_one, write, start, floor, window, room):
    """Compute a block of columns of a band, in chunks of window rows whose weights stay in the L2 cache."""
    lanes, rows, last_rows, vectors, tail = types
    (image, top, pitch, _), (weights, first), (bias, zeros, column) = read, panel, start
    y, place, row, n_band, n_columns, out = write
    run, width, step = window.columns * c, len(lanes) * len(vectors) + len(tail), window.column_step * c
    chunk, steps = panel_rows(run, out), -(-run // in_one)
    for a in range(0, window.rows, chunk):
        begin_at, is_last = (bias if a == 0 else zeros, column), a + chunk >= window.rows
        for i in range(row, row + n_band):
            skipped, n_i = rows_inside(i * window.row_step - window.row_padding, window.rows, height)
            low, high = max(a, skipped), min(a + chunk, skipped + n_i)
            begin = (i * window.row_step - window.row_padding + low - top) * pitch
            b, counts = (weights, first + low * steps * width, width, width * steps), (max(0, high - low), run)
            for j in range(0, n_columns, len(rows)):
                from_, to = (image, begin + j * step, step, in_one, pitch), (y, place + (i * n_columns + j) * out, out)
                place_in_room = (((i - row) * n_columns + j) * width, width)
                if j + len(rows) <= n_columns:
                    shape = (lanes, rows, vectors, tail)
                    _chunk(shape, from_, b, to, counts, begin_at, floor, room, place_in_room, a > 0, is_last)
                else:
                    shape = (lanes, last_rows, vectors, tail)
                    _chunk(shape, from_, b, to, counts, begin_at, floor, room, place_in_room, a > 0, is_last)


@inline
def _chunk(types, a, b, c, counts, start, floor, room, place, add, is_last):
    """Compute a block; of several chunks, sums are kept in ``room`` until the last."""
    if room is None:
        multiply_add(types, a, b, c, counts, start, floor, c, False)
    elif is_last:
        multiply_add(types, a, b, c, counts, start, floor, (room, *place), add)
    else:
        multiply_add(types, a, b, (room, *place), counts, start, -np.inf, (room, *place), add)
