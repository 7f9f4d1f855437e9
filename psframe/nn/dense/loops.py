"""Products of a dense layer (:func:`forward`, :func:`backward`), by :func:`multiply_add`.

Conventions
-----------
y = x W + b, with ``x`` (n, F), ``y`` and ``dy`` (n, out), and flat weights, in memory (F, out). W is not packed, which
would cost as much as the product with the few samples of a batch; it is read once, in place. A call does ``part`` of
``n_parts``; ``types`` is ``Blocking.types``.
"""

import numpy as np
from numba.extending import overload

from psframe.nn.jit import inline, jit
from psframe.nn.lanes import pointer
from psframe.nn.microkernel import multiply_add
from psframe.nn.pairs import element, join, number_as, pair, paired, per, widened, zero_where_off
from psframe.nn.parts import columns_of, share

CHUNK = 256  # rows of W at a time, so that they stay in cache between blocks of samples; even, for pairs


@jit
def forward(part, n_parts, types, x, weights, bias, wide, y, totals, room, one, relu):
    """Write x W + b to ``y``; with ``relu``, negative results are 0. The rows of a block are samples.

    Parameters
    ----------
    wide : buffers for the bias in float32, (n_parts, out)
    totals : float32 buffer for the sums of all chunks but the last, (max_batch, out); None: ``y``, which is float32
    room : buffers for a chunk of a block's columns in pairs, (n_parts, ...)
    one : an element that is 1
    """
    (n, depth), out = x.shape, y.shape[1]
    lanes, rows, last_rows, vectors, last_vectors, tail = types
    block, last, n_blocks = columns_of(types, out)
    in_one = per(one)
    numbers, sums = share(n_blocks + 1, part, n_parts), (pointer(widened(bias, part, wide)), pointer(totals))
    for k in range(0, depth, CHUNK):
        size, is_last = min(CHUNK, depth - k), k + CHUNK >= depth
        floor = 0.0 if relu and is_last else -np.inf
        for number in numbers:
            column = number * block
            b = panel(weights, k, size, column, block if number < n_blocks else last, out, room[part])
            a, c, more = (pointer(x), k, depth, in_one), (pointer(y), column, out), (k > 0, is_last)
            if number < n_blocks:
                _samples((lanes, rows, last_rows, vectors, ()), a, b, c, sums, n, size, floor, more)
            else:
                _samples((lanes, rows, last_rows, last_vectors, tail), a, b, c, sums, n, size, floor, more)


def panel(weights, k, size, column, width, out, room):
    """Return ``size`` rows of W from ``k`` on, of some columns: pointer, offset, and elements from row to row."""


@overload(panel)
def _panel(weights, k, size, column, width, out, room):
    if room.dtype == weights.dtype:

        def single(weights, k, size, column, width, out, room):
            return pointer(weights), k * out + column, out

        return single

    def pairs(weights, k, size, column, width, out, room):
        for i in range(0, size, 2):
            at = (k + i) * out + column
            join(width, weights, at, at + out if i + 1 < size else -1, room, i // 2 * width)
        return pointer(room), 0, width

    return pairs


@inline
def _samples(types, a, b, c, sums, n, size, floor, more):
    """Add a chunk of the sum to a block of columns, for all samples."""
    lanes, rows, last_rows, vectors, tail = types
    (x, k, depth, in_one), (y, column, out) = a, c
    s = 0
    while s < n:
        read, write = (x, s * depth + k, depth, in_one, 0), (y, s * out + column, out)
        if s + len(rows) <= n:
            _chunk((lanes, rows, vectors, tail), read, b, write, sums[0], sums[1], column, size, floor, more)
            s += len(rows)
        elif s + len(last_rows) <= n:
            _chunk((lanes, last_rows, vectors, tail), read, b, write, sums[0], sums[1], column, size, floor, more)
            s += len(last_rows)
        else:  # a batch smaller than the largest, for which the blocks are chosen
            _chunk((lanes, rows[:1], vectors, tail), read, b, write, sums[0], sums[1], column, size, floor, more)
            s += 1


@inline
def _chunk(types, a, b, c, bias, totals, column, size, floor, more):
    """Add a chunk to the sums of the ones before, or to the bias."""
    (_, at, out), (adds, is_last) = c, more
    if totals is None:
        if adds:
            multiply_add(types, a, (*b, 0), c, (1, size), (None, 0), floor, c, True)
        else:
            multiply_add(types, a, (*b, 0), c, (1, size), (None, 0), floor, (bias, column, 0), True)
    else:
        before = (totals, at, out) if adds else (bias, column, 0)
        if is_last:
            multiply_add(types, a, (*b, 0), c, (1, size), (None, 0), floor, before, True)
        else:
            multiply_add(types, a, (*b, 0), (totals, at, out), (1, size), (None, 0), floor, before, True)


@jit
def backward(
    part,
    n_parts,
    phase,
    types,
    x,
    y,
    dy,
    weights,
    dw,
    db,
    one,
    dx,
    pairs_x,
    pairs_dy,
    turned,
    room,
    relu,
    need_dx,
    adds,
):
    """Write or, with ``adds``, add the gradients of weights and bias; with ``need_dx``, write the input's.

    Parameters
    ----------
    phase : int
        0: prepare ``dy``; 1: compute the products; -1: both.
    types : (data_types, weight_types)
    dy : overwritten if ``relu``
    one : an element that is 1: the bias is the weight of an input that is always 1
    pairs_x, pairs_dy : buffers for ``x`` and ``dy`` with samples in pairs, (max_batch / 2, ...)
    turned : buffer for ``dy`` with the samples innermost, (out * max_batch,), or half of that in pairs
    room : buffers for a block of the input's gradient, (n_parts, rows of a block * max_batch)
    """
    (data_types, weight_types), max_batch = types, room.shape[2]
    if phase != 1:
        in_one, n = per(one), len(dy)
        for element in share(-(-n // in_one), part, n_parts):
            for s in range(element * in_one, min(n, (element + 1) * in_one)):
                if relu:
                    zero_where_off(dy[s], y[s])
                if need_dx:
                    _turn(data_types, s, dy[s], turned, max_batch)
            pair(x, element, pairs_x)
            pair(dy, element, pairs_dy)
    if phase != 0:
        given_x, given_dy = paired(x, pairs_x), paired(dy, pairs_dy)
        _weight_gradient(part, n_parts, weight_types, given_x, given_dy, -(-len(dy) // per(one)), dw, db, one, adds)
        if need_dx:
            _data_gradient(part, n_parts, data_types, dy, weights, turned, max_batch, room[part], dx)


@inline
def _turn(types, s, numbers, turned, max_batch):
    """Write ``numbers`` (out,) of sample ``s`` to its column of ``turned``, which is in blocks of columns."""
    block, last, n_blocks = columns_of(types, max_batch)
    number, in_one = min(s // block, n_blocks) if block else 0, per(turned)
    width, steps = block if number < n_blocks else last, -(-len(numbers) // in_one)
    at = number * block * steps + s - number * block
    for k in range(steps):
        first = in_one * k
        turned[at + k * width] = element(numbers, first, first + 1, first + 1 < len(numbers), turned)


@inline
def _weight_gradient(part, n_parts, types, x, dy, n, dw, db, one, adds):
    """Compute dW and db. Rows of a block are features, the sum runs over samples; rows of dW are written in order."""
    _, rows, last_rows, _, _, _ = types
    depth, out = x.shape[1], dy.shape[1]
    for number in share(-(-depth // len(rows)), part, n_parts):
        feature = number * len(rows)
        read, to = (pointer(x), feature, 1, depth, 0), (pointer(dw), feature * out)
        if feature + len(rows) <= depth:
            _features(types, rows, read, pointer(dy), to, n, out, adds)
        else:
            _features(types, last_rows, read, pointer(dy), to, n, out, adds)
    if part == 0:
        _features(types, rows[:1], (pointer(one), 0, 0, 0, 0), pointer(dy), (pointer(db), 0), n, out, adds)


@inline
def _features(types, rows, read, dy, to, n, out, adds):
    lanes, _, _, vectors, last_vectors, tail = types
    block, _, n_blocks = columns_of(types, out)
    weights, at = to
    for number in range(n_blocks + 1):
        column = number * block
        b, c = (dy, column, out, 0), (weights, at + column, out)
        if number < n_blocks:
            multiply_add((lanes, rows, vectors, ()), read, b, c, (1, n), (None, 0), -np.inf, c, adds)
        else:
            multiply_add((lanes, rows, last_vectors, tail), read, b, c, (1, n), (None, 0), -np.inf, c, adds)


@inline
def _data_gradient(part, n_parts, types, dy, weights, turned, max_batch, rooms, dx):
    """Compute dx transposed: rows of a block are features, columns samples, so that W is read along its rows."""
    _, rows, last_rows, _, _, _ = types
    (n, out), depth = dy.shape, dx.shape[1]
    in_one, room = per(turned), rooms.reshape(-1)
    for number in share(-(-depth // len(rows)), part, n_parts):
        feature = number * len(rows)
        size = min(len(rows), depth - feature)
        if size == len(rows):
            _of_features(
                types, rows, pointer(weights), feature, in_one, pointer(turned), pointer(room), n, max_batch, out
            )
        else:
            _of_features(
                types, last_rows, pointer(weights), feature, in_one, pointer(turned), pointer(room), n, max_batch, out
            )
        for s in range(n):
            for r in range(size):
                dx[s, feature + r] = number_as(room[r * max_batch + s], dx)


@inline
def _of_features(types, rows, weights, feature, in_one, turned, room, n, max_batch, out):
    lanes, _, _, vectors, last_vectors, tail = types
    block, last, n_blocks = columns_of(types, max_batch)
    steps = -(-out // in_one)
    a = (weights, feature * out, out, in_one, 0)
    for number in range(n_blocks + 1):
        column = number * block
        c = (room, column, max_batch)
        if column >= n:
            break
        if number < n_blocks:
            b = (turned, column * steps, block, 0)
            multiply_add((lanes, rows, vectors, ()), a, b, c, (1, out), (None, 0), -np.inf, c, False)
        else:
            b = (turned, column * steps, last, 0)
            multiply_add((lanes, rows, last_vectors, tail), a, b, c, (1, out), (None, 0), -np.inf, c, False)
