"""Convolution of 3x3 by transformed tiles (:func:`convolve`); see :mod:`psframe.nn.conv.transforms`.

Images are C-contiguous, (n, H, W, C). Each number of a transformed tile is a channel's; those at one place, of some
tiles, are a matrix (tiles, C), whose product with the weights of that place, (C, out), is what the output is made from.
"""

import numpy as np

from psframe.nn.conv.transforms import INPUT, OUTPUT, WEIGHTS, transform
from psframe.nn.jit import inline, inner, jit
from psframe.nn.lanes import pointer
from psframe.nn.microkernel import multiply_add
from psframe.nn.parts import columns_of, share
from psframe.nn.transpose import transpose

TURNED = 64  # channels of weights that a thread transposes at a time


@jit
def convolve(
    part, n_parts, phase, m, types, most, x, weights, turned, packed, bias, y, packs, turns, relu, padding, rooms
):  # fmt: skip
    """Write the convolution of ``x`` (n, H, W, C) to ``y`` (n, H', W', out).

    Parameters
    ----------
    phase : int
        0: turn the weights, with ``turns``; then: transform them, with ``packs``; the last: convolve; -1: all.
    m : tuple, whose length is that of a tile's side of outputs
    types : (blocking, (lanes, tail of C), tail of out, transposed tile), of tiles x out
    weights : (3, 3, C, out), flat; or with ``turns`` (3, 3, out, C), of the convolution whose input's gradient it is
    turned : buffer for the weights as they are needed; with ``turns`` alone
    packed : buffer for the transformed ones
    packs : bool
        True if the weights are not transformed yet.
    padding : (rows, columns)
    rooms : (transformed, products, tile), buffers of each thread
    """
    sizes = x.shape[3], y.shape[3]
    stage = phase if phase < 0 else phase + 2 - packs - (packs and turns)
    if stage in (0, -1) and packs and turns:
        _turn(part, n_parts, types[3], weights, sizes, turned)
    if stage in (1, -1) and packs:
        _pack(part, n_parts, m, types, turned if turns else weights, sizes, packed)
    if stage in (2, -1):
        _convolve(part, n_parts, m, types, most, x, packed, bias, y, 0.0 if relu else -np.inf, padding, rooms)


@inner
def _turn(part, n_parts, tile, weights, sizes, turned):
    """Write weights (3, 3, out, C) to ``turned`` (3, 3, C, out), from the last place of the window to the first."""
    c, out = sizes
    for place in range(9):
        for block in share(-(-c // TURNED), part, n_parts):
            k = block * TURNED
            read, write = (
                (pointer(weights), (8 - place) * c * out + k, c),
                (pointer(turned), (place * c + k) * out, out),
            )
            transpose(tile, (out, min(TURNED, c - k)), read, write)


@inner
def _pack(part, n_parts, m, types, weights, sizes, packed):
    """Transform weights to blocks of columns (C, width), for each place of a tile."""
    (c, out), (blocking, (lanes, _), tail, _) = sizes, types
    block, last, n_blocks = columns_of(blocking, out)
    plane, side, to = c * out, len(m) + 2, packed.shape[1]
    for k in share(c, part, n_parts):
        for j in range(0, out, len(lanes)):
            number = min(j // block, n_blocks) if block else 0
            begin, width = number * block, block if number < n_blocks else last
            read = (pointer(weights), k * out + j, 3 * plane, plane)
            write = (pointer(packed), begin * c + k * width + j - begin, side * to, to)
            if j + len(lanes) <= out:
                transform((m, WEIGHTS, lanes, ()), read, write, (None, 0), -np.inf, (0, 0))
            else:
                transform((m, WEIGHTS, lanes, tail), read, write, (None, 0), -np.inf, (0, 0))


@inner
def _convolve(part, n_parts, m, types, most, x, packed, bias, y, floor, padding, rooms):
    c, (_, n_rows, n_columns, out) = x.shape[3], y.shape
    given, products, tile = rooms[0][part], rooms[1][part], rooms[2][part]
    side = len(m) + 2
    down, across = -(-n_rows // len(m)), -(-n_columns // len(m))
    n_tiles = len(x) * down * across
    for block in share(-(-n_tiles // most), part, n_parts):
        first, n = block * most, min(most, n_tiles - block * most)
        for t in range(n):
            s, row, column = pixel_of(m, first + t, down, across)
            transform_tile(m, INPUT, side, types[1], x, (s, row - padding[0], column - padding[1]), tile, given, t)
        for place in range(side * side):
            a, b = (pointer(given), place * given.shape[1]), (pointer(packed), place * packed.shape[1])
            _multiply(types[0], a, b, (pointer(products), place * products.shape[1]), (n, c, out))
        for t in range(n):
            _transform_output(m, types, products, t, bias, y, pixel_of(m, first + t, down, across), floor)


@inline
def pixel_of(m, number, down, across):
    """Return sample, row and column of a tile's first output, of ``down`` x ``across`` tiles a sample."""
    return number // (down * across), number // across % down * len(m), number % across * len(m)


@inline
def transform_tile(m, matrix, side, vector, x, at, tile, given, t):
    """Transform ``side`` x ``side`` pixels of ``x`` from the one at (s, row, column) on; zeros are around the image."""
    (_, height, width, c), (s, top, left), plane = x.shape, at, given.shape[1]
    if top >= 0 and left >= 0 and top + side <= height and left + side <= width:
        source, begin, pitch = pointer(x), ((s * height + top) * width + left) * c, width * c
    else:
        source, begin, pitch = pointer(tile), 0, side * c
        for i in range(side):
            for j in range(side):
                to = tile[(i * side + j) * c : (i * side + j + 1) * c]
                if 0 <= top + i < height and 0 <= left + j < width:
                    to[:] = x[s, top + i, left + j]
                else:
                    to[:] = 0
    read, write = (source, begin, pitch, c), (pointer(given), t * c, (len(m) + 2) * plane, plane)
    transform_channels(m, matrix, vector, c, read, write, None, -np.inf, (0, 0))


@inline
def transform_channels(m, matrix, vector, n, read, write, start, floor, limits):
    """Transform ``n`` channels that lie side by side; arguments as of :func:`transform`, for the first of them."""
    (lanes, tail), (x, begin, x_row, x_column), (y, place, y_row, y_column) = vector, read, write
    for k in range(0, n, len(lanes)):
        from_, to = (x, begin + k, x_row, x_column), (y, place + k, y_row, y_column)
        if k + len(lanes) <= n:
            transform((m, matrix, lanes, ()), from_, to, (start, k), floor, limits)
        else:
            transform((m, matrix, lanes, tail), from_, to, (start, k), floor, limits)


@inline
def _multiply(types, a, b, to, counts):
    """Compute the products of tiles (n, C) with weights (C, out); of a last block, rows behind the tiles, too."""
    lanes, rows, _, vectors, last_vectors, tail = types
    (x, x_at), (weights, first), (y, y_at), (n, c, out) = a, b, to, counts
    block, last, n_blocks = columns_of(types, out)
    for number in range(n_blocks + 1):
        panel, column = first + number * block * c, number * block
        for t in range(0, n, len(rows)):
            read, write = (x, x_at + t * c, c, 1, 0), (y, y_at + t * out + column, out)
            if number < n_blocks:
                kind, given = (lanes, rows, vectors, ()), (weights, panel, block, 0)
                multiply_add(kind, read, given, write, (1, c), (None, 0), -np.inf, write, False)
            else:
                kind, given = (lanes, rows, last_vectors, tail), (weights, panel, last, 0)
                multiply_add(kind, read, given, write, (1, c), (None, 0), -np.inf, write, False)


@inline
def _transform_output(m, types, products, t, bias, y, at, floor):
    """Write the outputs of a tile, from pixel ``at`` (s, row, column) on."""
    (_, n_rows, n_columns, out), (s, top, left), plane = y.shape, at, products.shape[1]
    (_, (lanes, _), tail, _), side = types, len(m) + 2
    begin, limits = ((s * n_rows + top) * n_columns + left) * out, (n_rows - top, n_columns - left)
    read, write = (pointer(products), t * out, side * plane, plane), (pointer(y), begin, n_columns * out, out)
    transform_channels(m, OUTPUT, (lanes, tail), out, read, write, pointer(bias), floor, limits)
