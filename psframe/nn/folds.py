"""Sums of outer products that go on from call to call (:func:`fold_rows`), by :func:`multiply_add`."""

import numpy as np

from psframe.nn.jit import inline
from psframe.nn.microkernel import multiply_add
from psframe.nn.parts import columns_of


@inline
def fold_rows(types, rows, read, given, to, zeros, n, n_columns, adds):
    """Write to some rows of C, row-major, the sum over k < ``n`` of a[k] b[k]; with ``adds``, to what they hold.

    The terms are added one after the other, so that it changes no bit where one call ends and the next goes on.

    Parameters
    ----------
    types : ``Blocking.types``
    rows : the rows of a block, or fewer
    read : a, as :func:`multiply_add` reads it
    given : (pointer, first element) of b, (n, n_columns)
    to : (pointer, first element) of the rows of C
    zeros : pointer to as many zeros as there are columns: sums begin with them
    """
    lanes, _, _, vectors, last_vectors, tail = types
    block, _, n_blocks = columns_of(types, n_columns)
    for number in range(n_blocks + 1):
        column = number * block
        b, c = (given[0], given[1] + column, n_columns, 0), (to[0], to[1] + column, n_columns)
        start = c if adds else (zeros, 0, 0)
        if number < n_blocks:
            multiply_add((lanes, rows, vectors, ()), read, b, c, (1, n), start, -np.inf, c, False)
        else:
            multiply_add((lanes, rows, last_vectors, tail), read, b, c, (1, n), start, -np.inf, c, False)
