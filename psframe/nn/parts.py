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
