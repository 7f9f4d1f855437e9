"""What the loops of several layers share: work in parts that may run at the same time, products in blocks."""

from psframe.nn.jit import inline


@inline
def share(n, part, n_parts):
    """Return the part of range(n) that is ``part``'s, of ``n_parts``."""
    return range(n * part // n_parts, n * (part + 1) // n_parts)


@inline
def columns_of(types, n_columns):
    """Return how many columns a whole block has, how many the last one, and how many whole blocks there are.

    ``types`` is ``Blocking.types``.
    """
    lanes, _, _, vectors, last_vectors, tail = types
    block, last = len(lanes) * len(vectors), len(lanes) * len(last_vectors) + len(tail)
    return block, last, (n_columns - last) // block if block else 0


@inline
def zero_where_off(dy, y):
    """Zero ``dy`` (m,) where ``y`` (m,) is not above 0: the gradient of a ReLU."""
    for i in range(len(dy)):
        dy[i] = 0 if y[i] <= 0 else dy[i]


@inline
def copy(n, source, source_at, to, to_at):
    """Copy ``n`` numbers between arrays (m,) that do not overlap: assigning slices might copy them twice."""
    for i in range(n):
        to[to_at + i] = source[source_at + i]
