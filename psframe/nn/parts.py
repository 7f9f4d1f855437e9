"""Helpers of the layers' loops: concurrent parts of work (:func:`share`), blocks of columns (:func:`columns_of`)."""

from psframe.nn.jit import inline


@inline
def share(n, part, n_parts):
    """Return the range of ``part`` in range(n), divided into ``n_parts``."""
    return range(n * part // n_parts, n * (part + 1) // n_parts)


@inline
def columns_of(types, n_columns):
    """Return the columns of a full block, those of the last block, and the number of full blocks.

    ``types`` is ``Blocking.types``.
    """
    lanes, _, _, vectors, last_vectors, tail = types
    block, last = len(lanes) * len(vectors), len(lanes) * len(last_vectors) + len(tail)
    return block, last, (n_columns - last) // block if block else 0


@inline
def zero_where_off(dy, y):
    """Zero ``dy`` (m,) where ``y`` (m,) is at most 0: the gradient of a ReLU."""
    for i in range(len(dy)):
        dy[i] = 0 if y[i] <= 0 else dy[i]


@inline
def copy(n, source, source_at, to, to_at):
    """Copy ``n`` numbers between arrays (m,) that do not overlap; a slice assignment might copy them twice."""
    for i in range(n):
        to[to_at + i] = source[source_at + i]
