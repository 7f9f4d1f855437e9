"""Products of a dense layer (:func:`forward`, :func:`backward`), by :func:`multiply_add`.

Conventions
-----------
y = x W + b, with ``x`` (n, F), ``y`` and ``dy`` (n, out), and flat weights, in memory (F, out). W is not packed, which
would cost as much as the product with the few samples of a batch; it is read once, in place. A call does ``part`` of
``n_parts``; ``types`` is ``Blocking.types``.
"""

import numpy as np

from psframe.nn.folds import fold_rows
from psframe.nn.jit import inline, jit
from psframe.nn.lanes import pointer
from psframe.nn.microkernel import multiply_add
from psframe.nn.pairs import element, pair, paired, per, widened, zero_where_off
from psframe.nn.parts import columns_of, share
from psframe.nn.transpose import transpose

CHUNK = 256  # rows of W at a time, so that they stay in cache between blocks of samples; even, for pairs


@jit
def forward(part, n_parts, types, x, weights, bias, wide, y, totals, one, relu):
    """Write x W + b to ``y``; with ``relu``, negative results are 0. The rows of a block are samples.

    Parameters
    ----------
    wide : buffers for the bias in float32, (n_parts, out)
    totals : float32 buffer for the sums of all chunks but the last, (max_batch, out); None: ``y``, which is float32
    one : an element that is 1
    """
    (n, depth), out = x.shape, y.shape[1]
    lanes, rows, _, vectors, last_vectors, tail = types
    block, _, n_blocks = columns_of(types, out)
    in_one = per(one)
    numbers, sums = share(n_blocks + 1, part, n_parts), (pointer(widened(bias, part, wide)), pointer(totals))
    for k in range(0, depth, CHUNK):
        size, is_last = min(CHUNK, depth - k), k + CHUNK >= depth
        floor = 0.0 if relu and is_last else -np.inf
        for number in numbers:
            column = number * block
            a, b = (pointer(x), k, depth, in_one), (pointer(weights), k * out + column, out)
            c, more = (pointer(y), column, out), (k > 0, is_last)
            if number < n_blocks:
                _samples((lanes, rows, vectors, ()), a, b, c, sums, n, size, floor, more)
            else:
                _samples((lanes, rows, last_vectors, tail), a, b, c, sums, n, size, floor, more)


@inline
def _samples(types, a, b, c, sums, n, size, floor, more):
    """Add a chunk of the sum to a block of columns, for all samples."""
    lanes, rows, vectors, tail = types
    s = 0
    while s + len(rows) <= n:
        _chunk((lanes, rows, vectors, tail), s, a, b, c, sums[0], sums[1], size, floor, more)
        s += len(rows)
    while s + 4 <= n:  # what is left, less than a block: of any batch
        _chunk((lanes, rows[:4], vectors, tail), s, a, b, c, sums[0], sums[1], size, floor, more)
        s += 4
    while s < n:
        _chunk((lanes, rows[:1], vectors, tail), s, a, b, c, sums[0], sums[1], size, floor, more)
        s += 1


@inline
def _chunk(types, s, a, b, c, bias, totals, size, floor, more):
    """Add a chunk to the sums of the ones before, or to the bias, for samples from ``s`` on."""
    (x, k, depth, in_one), (y, column, out), (adds, is_last) = a, c, more
    read, write = (x, s * depth + k, depth, in_one, 0), (y, s * out + column, out)
    if totals is None:
        if adds:
            multiply_add(types, read, (*b, 0), write, (1, size), (None, 0), floor, write, True)
        else:
            multiply_add(types, read, (*b, 0), write, (1, size), (None, 0), floor, (bias, column, 0), True)
    else:
        total = (totals, s * out + column, out)
        before = total if adds else (bias, column, 0)
        if is_last:
            multiply_add(types, read, (*b, 0), write, (1, size), (None, 0), floor, before, True)
        else:
            multiply_add(types, read, (*b, 0), total, (1, size), (None, 0), floor, before, True)


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
    zeros,
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
    turned : buffer for ``dy`` with the samples innermost, (out * width,), or half of that in pairs; ``width`` is the
        largest batch, and some columns that are not used
    room : buffers for a block of the input's gradient, (n_parts, rows of a block, width)
    zeros : as many as there are outputs: sums begin with them, or with those of the passes before, so that parts of a
        batch change no bit
    """
    (data_types, weight_types), width = types, room.shape[2]
    if phase != 1:
        in_one, n = per(one), len(dy)
        for element in share(-(-n // in_one), part, n_parts):
            for s in range(element * in_one, min(n, (element + 1) * in_one)):
                if relu:
                    zero_where_off(dy[s], y[s])
                if need_dx:
                    _turn(data_types, s, dy[s], turned, width)
            pair(x, element, pairs_x)
            pair(dy, element, pairs_dy)
    if phase != 0:
        given_x, given_dy = paired(x, pairs_x), paired(dy, pairs_dy)
        n = -(-len(dy) // per(one))
        _weight_gradient(part, n_parts, weight_types, given_x, given_dy, n, dw, db, one, zeros, adds)
        if need_dx:
            _data_gradient(part, n_parts, data_types, dy, weights, turned, width, room[part], dx)


@inline
def _turn(types, s, numbers, turned, width):
    """Write ``numbers`` (out,) of sample ``s`` to its column of ``turned``: blocks of columns, and a last vector."""
    lanes, _, _, _, vectors, tail = types
    block, steps, in_one = len(lanes) * len(vectors) + len(tail), -(-len(numbers) // per(turned)), per(turned)
    number = s // block
    columns = min(block, width - number * block)
    at = number * block * steps + s - number * block
    for k in range(steps):
        first = in_one * k
        turned[at + k * columns] = element(numbers, first, first + 1, first + 1 < len(numbers), turned)


@inline
def _weight_gradient(part, n_parts, types, x, dy, n, dw, db, one, zeros, adds):
    """Compute dW and db. Rows of a block are features, the sum runs over samples; rows of dW are written in order."""
    _, rows, _, _, _, _ = types
    (depth, out), given = (x.shape[1], dy.shape[1]), (pointer(x), pointer(dy), pointer(dw), pointer(zeros))
    for number in share(-(-depth // len(rows)), part, n_parts):
        feature = number * len(rows)
        if feature + len(rows) <= depth:
            _features(types, rows, feature, given, n, depth, out, adds)
            continue
        while feature + 4 <= depth:
            _features(types, rows[:4], feature, given, n, depth, out, adds)
            feature += 4
        while feature < depth:
            _features(types, rows[:1], feature, given, n, depth, out, adds)
            feature += 1
    if part == 0:
        _features(types, rows[:1], 0, (pointer(one), pointer(dy), pointer(db), pointer(zeros)), n, 0, out, adds)


@inline
def _features(types, rows, feature, given, n, depth, out, adds):
    """Compute the gradients of the weights of some features from ``feature`` on; ``depth`` 0: of one that is 1."""
    x, dy, weights, zeros = given
    fold_rows(types, rows, (x, feature, 1, depth, 0), (dy, 0), (weights, feature * out), zeros, n, out, adds)


@inline
def _data_gradient(part, n_parts, types, dy, weights, turned, width, rooms, dx):
    """Compute dx transposed: rows of a block are features, columns samples, so that W is read along its rows."""
    lanes, rows, _, _, vectors, tail = types
    (n, out), depth, in_one, room = dy.shape, dx.shape[1], per(turned), rooms.reshape(-1)
    block, steps = len(lanes) * len(vectors) + len(tail), -(-out // in_one)
    for number in share(-(-depth // len(rows)), part, n_parts):
        feature = number * len(rows)
        first = min(feature, depth - len(rows))  # the last block begins earlier, where it has been computed
        a = (pointer(weights), first * out, out, in_one, 0)
        for column in range(0, n, block):
            b, c = (pointer(turned), column * steps), (pointer(room), column, width)
            if column + block <= width:
                multiply_add((lanes, rows, vectors, tail), a, (*b, block, 0), c, (1, out), (None, 0), -np.inf, c, False)
            else:
                one = (*b, len(lanes), 0)
                multiply_add((lanes, rows, vectors[:1], ()), a, one, c, (1, out), (None, 0), -np.inf, c, False)
        skipped = feature - first
        read, write = (pointer(room), skipped * width, width), (pointer(dx), feature, depth)
        transpose((lanes, rows), (len(rows) - skipped, n), read, write)
