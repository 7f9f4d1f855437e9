"""Products of a dense layer (:func:`forward`, :func:`backward`), by :func:`multiply_add`.

Conventions
-----------
y = x W + b, with ``x`` (n, F), ``y`` and ``dy`` (n, out), and flat weights, in memory (F, out). W is not packed, which
would cost as much as the product with the few samples of a batch; it is read once, in place. A call does ``part`` of
``n_parts``; ``types`` is ``Blocking.types``.
"""

import numpy as np

from psframe.nn.jit import inline, jit
from psframe.nn.lanes import pointer
from psframe.nn.microkernel import multiply_add
from psframe.nn.pairs import copy, zero_where_off
from psframe.nn.parts import columns_of, share

CHUNK = 256  # rows of W at a time, so that they stay in cache between blocks of samples


@jit
def forward(part, n_parts, types, x, weights, bias, y, relu):
    """Write x W + b to ``y``; with ``relu``, negative results are 0. The rows of a block are samples."""
    (n, depth), out = x.shape, y.shape[1]
    lanes, rows, last_rows, vectors, last_vectors, tail = types
    block, _, n_blocks = columns_of(types, out)
    numbers = share(n_blocks + 1, part, n_parts)
    begin, end = numbers.start * block, min(out, numbers.stop * block) if numbers.stop <= n_blocks else out
    for s in range(n):
        copy(end - begin, bias, begin, y[s], begin)
    for k in range(0, depth, CHUNK):
        size = min(CHUNK, depth - k)
        floor = 0.0 if relu and k + size == depth else -np.inf
        for number in numbers:
            column = number * block
            a, b, c = (pointer(x), k, depth), (pointer(weights), k * out + column, out), (pointer(y), column, out)
            if number < n_blocks:
                _samples((lanes, rows, last_rows, vectors, ()), a, b, c, n, size, floor)
            else:
                _samples((lanes, rows, last_rows, last_vectors, tail), a, b, c, n, size, floor)


@inline
def _samples(types, a, b, c, n, size, floor):
    """Add a chunk of the sum to a block of columns, for all samples."""
    lanes, rows, last_rows, vectors, tail = types
    (x, k, depth), (y, column, out) = a, c
    s = 0
    while s < n:
        read, write = (x, s * depth + k, depth, 1, 0), (y, s * out + column, out)
        if s + len(rows) <= n:
            multiply_add((lanes, rows, vectors, tail), read, (*b, 0), write, (1, size), (None, 0), floor, write, True)
            s += len(rows)
        elif s + len(last_rows) <= n:
            multiply_add(
                (lanes, last_rows, vectors, tail), read, (*b, 0), write, (1, size), (None, 0), floor, write, True
            )
            s += len(last_rows)
        else:  # a batch smaller than the largest, for which the blocks are chosen
            multiply_add(
                (lanes, rows[:1], vectors, tail), read, (*b, 0), write, (1, size), (None, 0), floor, write, True
            )
            s += 1


@jit
def backward(part, n_parts, phase, types, x, y, dy, weights, dw, db, one, dx, turned, room, relu, need_dx, adds):
    """Write or, with ``adds``, add the gradients of weights and bias; with ``need_dx``, write the input's.

    Parameters
    ----------
    phase : int
        0: prepare ``dy``; 1: compute the products; -1: both.
    types : (data_types, weight_types)
    dy : overwritten if ``relu``
    one : an array that holds a 1: the bias is the weight of an input that is always 1
    turned : buffer for ``dy`` with the samples innermost, (out * max_batch,)
    room : buffers for a block of the input's gradient, (n_parts, rows of a block * max_batch)
    """
    data_types, weight_types = types
    if phase != 1:
        for s in share(len(dy), part, n_parts):
            if relu:
                zero_where_off(dy[s], y[s])
            if need_dx:
                _turn(data_types, s, dy[s], turned, len(turned) // dy.shape[1])
    if phase != 0:
        _weight_gradient(part, n_parts, weight_types, x, dy, dw, db, one, adds)
        if need_dx:
            _data_gradient(part, n_parts, data_types, dy, weights, turned, room[part], dx)


@inline
def _turn(types, s, numbers, turned, max_batch):
    """Write ``numbers`` (out,) of sample ``s`` to its column of ``turned``, which is in blocks of columns."""
    block, last, n_blocks = columns_of(types, max_batch)
    number = min(s // block, n_blocks) if block else 0
    width = block if number < n_blocks else last
    at = number * block * len(numbers) + s - number * block
    for k in range(len(numbers)):
        turned[at + k * width] = numbers[k]


@inline
def _weight_gradient(part, n_parts, types, x, dy, dw, db, one, adds):
    """Compute dW and db. Rows of a block are features, the sum runs over samples; rows of dW are written in order."""
    _, rows, last_rows, _, _, _ = types
    (n, depth), out = x.shape, dy.shape[1]
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
def _data_gradient(part, n_parts, types, dy, weights, turned, room, dx):
    """Compute dx transposed: rows of a block are features, columns samples, so that W is read along its rows."""
    _, rows, last_rows, _, _, _ = types
    (n, out), depth = dy.shape, dx.shape[1]
    max_batch = len(turned) // out
    for number in share(-(-depth // len(rows)), part, n_parts):
        feature = number * len(rows)
        size = min(len(rows), depth - feature)
        if size == len(rows):
            _of_features(types, rows, pointer(weights), feature, pointer(turned), pointer(room), n, max_batch, out)
        else:
            _of_features(types, last_rows, pointer(weights), feature, pointer(turned), pointer(room), n, max_batch, out)
        for s in range(n):
            for r in range(size):
                dx[s, feature + r] = room[r * max_batch + s]


@inline
def _of_features(types, rows, weights, feature, turned, room, n, max_batch, out):
    lanes, _, _, vectors, last_vectors, tail = types
    block, last, n_blocks = columns_of(types, max_batch)
    a = (weights, feature * out, out, 1, 0)
    for number in range(n_blocks + 1):
        column = number * block
        c = (room, column, max_batch)
        if column >= n:
            break
        if number < n_blocks:
            b = (turned, column * out, block, 0)
            multiply_add((lanes, rows, vectors, ()), a, b, c, (1, out), (None, 0), -np.inf, c, False)
        else:
            b = (turned, column * out, last, 0)
            multiply_add((lanes, rows, last_vectors, tail), a, b, c, (1, out), (None, 0), -np.inf, c, False)
