"""The sum that gives a bias its gradient."""

import numpy as np

from psframe.nn.jit import jit


@jit
def column_sums(rows, out):
    """Write to ``out`` (m,) the sums over ``rows`` (n, m), summed in float64.

    The gradient of a bias adds up to tens of thousands of rows; in float32 its rounding errors would outweigh those of
    all matrix products, and with them the difference between one worker and many.
    """
    total = np.zeros(rows.shape[1])
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            total[j] += rows[i, j]
    out[:] = total
