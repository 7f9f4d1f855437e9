"""Gradient of a 3x3 convolution's weights by transformed tiles (:func:`weight_gradient`); see :mod:`.transforms`.

At each place of a tile, the transformed inputs (tiles, C) and output gradients (tiles, out) have a product (C, out),
a sum over the tiles of all samples, in their order: one after the other, so that neither blocks of tiles nor parts of a
batch change a bit. The transform of these sums is the gradient.
"""

import numpy as np

from psframe.nn.conv.gradients import rows_gradient
from psframe.nn.conv.tiles import pixel_of, transform_channels, transform_tile
from psframe.nn.conv.transforms import INPUT, OUTPUT_GRADIENT, WEIGHTS_GRADIENT
from psframe.nn.folds import fold_rows
from psframe.nn.jit import inline, inner, jit
from psframe.nn.lanes import pointer
from psframe.nn.pairs import zero_where_off
from psframe.nn.parts import share


@jit
def weight_gradient(
    part, n_parts, phase, m, types, most, x, y, dy, dw, db, one, zeros, sums, relu, adds, padding, given, gradients,
    tiles,
):  # fmt: skip
    """Write the gradients of weights (3, 3, C, out) and bias, of this pass and, with ``adds``, of those before.

    Parameters
    ----------
    phase : int
        0: transform the first ``most`` tiles; 1: multiply these; 2 and 3: the next ones, and so on; the last: transform
        the sums; -1: all. With ``relu`` one comes before: prepare ``dy``.
    types : (weight_types, bias_types, (lanes, tail of C), tail of out)
    dy : overwritten if ``relu``, with which y = max(convolution, 0)
    one : an array that holds a 1: the bias is the weight of an input that is always 1
    zeros : as many as there are outputs
    sums : sums of the products, kept from pass to pass of a step
    given, gradients, tiles : buffers for transformed inputs and output gradients, and for a tile of each thread
    """
    stage = phase - relu if phase >= 0 else 0
    if relu and (phase == -1 or stage < 0):
        for s in share(len(dy), part, n_parts):
            zero_where_off(dy[s].reshape(-1), y[s].reshape(-1))
    n_tiles, sizes = n_of(m, dy.shape), (x.shape[3], dy.shape[3])
    n_blocks = -(-n_tiles // most)
    begin = 0 if phase == -1 else stage // 2 if stage >= 0 else n_blocks
    for block in range(begin, n_blocks if phase == -1 else min(n_blocks, begin + 1)):
        first = block * most
        n = min(most, n_tiles - first)
        if phase == -1 or stage % 2 == 0:
            _transform_tiles(part, n_parts, m, types, x, dy, first, n, padding, given, gradients, tiles[part])
        if phase == -1 or stage % 2 == 1:
            _multiply(part, n_parts, types[0], given, gradients, sums, zeros, n, sizes, adds or block > 0)
    if phase == -1 or stage == 2 * n_blocks:
        if n_blocks:
            _transform_sums(part, n_parts, m, types, sizes, sums, dw)
        elif not adds and part == 0:
            dw[:] = 0
        if part == 0:
            _add_bias(types[1], dy, one, db, adds)


@inline
def n_of(m, shape):
    """Return the number of tiles of outputs (n, H', W', out)."""
    return shape[0] * -(-shape[1] // len(m)) * -(-shape[2] // len(m))


@inner
def _transform_tiles(part, n_parts, m, types, x, dy, first, n, padding, given, gradients, tile):
    down, across = -(-dy.shape[1] // len(m)), -(-dy.shape[2] // len(m))
    for t in share(n, part, n_parts):
        s, row, column = pixel_of(m, first + t, down, across)
        of_x = (s, row - padding[0], column - padding[1])
        transform_tile(m, INPUT, len(m) + 2, types[2], x, of_x, tile, given, t)
        transform_tile(m, OUTPUT_GRADIENT, len(m), (types[2][0], types[3]), dy, (s, row, column), tile, gradients, t)


@inner
def _multiply(part, n_parts, types, given, gradients, sums, zeros, n, sizes, adds):
    """Let the sums go on with a block of tiles, or begin; a block of rows are channels of the input."""
    (_, rows, last_rows, _, _, _), (c, out) = types, sizes
    n_rows = -(-c // len(rows))
    for task in share(len(sums) * n_rows, part, n_parts):
        place, r = task // n_rows, task % n_rows * len(rows)
        read = (pointer(given), place * given.shape[1] + r, 1, c, 0)
        b, to = (pointer(gradients), place * gradients.shape[1]), (pointer(sums), place * sums.shape[1] + r * out)
        if r + len(rows) <= c:
            fold_rows(types, rows, read, b, to, pointer(zeros), n, out, adds)
        else:
            fold_rows(types, last_rows, read, b, to, pointer(zeros), n, out, adds)


@inner
def _transform_sums(part, n_parts, m, types, sizes, sums, dw):
    (c, out), (lanes, _), tail, side, plane = sizes, types[2], types[3], len(m) + 2, sums.shape[1]
    for k in share(c, part, n_parts):
        read, write = (pointer(sums), k * out, side * plane, plane), (pointer(dw), k * out, 3 * c * out, c * out)
        transform_channels(m, WEIGHTS_GRADIENT, (lanes, tail), out, read, write, None, -np.inf, (0, 0))


@inner
def _add_bias(types, dy, one, db, adds):
    n, n_rows, n_columns, out = dy.shape
    if n:
        given = (pointer(dy), 0, (n_rows, n_columns, out))
        sample = (n, 0, n_rows * n_columns * out)
        rows_gradient(types, types[1], (pointer(one), 0, 0, 0, 0), given, (pointer(db), 0), sample, adds)
    elif not adds:
        db[:] = 0
