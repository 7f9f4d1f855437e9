"""The windows of a convolution over an image: packed weights, and rows of images with zeros at their sides.

Images are C-contiguous, (n, H, W, C).

- Weights are packed before use, the columns of a block together, or each row of it would be a page from the next.
- Rows of a window that lie outside the image are left out; for columns outside, rows of the image are copied with zeros
  at their sides (*staged*), a band at a time that fits into the second cache.
"""

from typing import NamedTuple

from psframe.nn.jit import inline, inner
from psframe.nn.lanes import pointer
from psframe.nn.parts import columns_of, copy, share

PANEL = 64 << 10  # numbers of packed weights that stay in the second cache, beside images


class Window(NamedTuple):
    """The places of a window: its size, its steps, and the zeros around the image.

    ``band`` is how many rows are done at a time: of the output, or of the input in its gradient.
    """

    rows: int
    columns: int
    row_step: int
    column_step: int
    row_padding: int
    column_padding: int
    band: int


@inner
def pack(part, n_parts, types, weights, counts, strides, packed):
    """Copy ``weights`` (n_i, n_k, n_columns), which has these ``strides``, to blocks of columns (n_i, n_k, width)."""
    (n_i, n_k, n_columns), (i_stride, k_stride, stride) = counts, strides
    block, last, n_blocks = columns_of(types, n_columns)
    for number in share(n_blocks + 1, part, n_parts):
        width = block if number < n_blocks else last
        for i in range(n_i):
            panel = packed[(number * block * n_i + i * width) * n_k :]
            matrix = weights[number * block * stride + i * i_stride :]
            if stride == 1:
                for k in range(n_k):
                    for column in range(width):
                        panel[k * width + column] = matrix[k * k_stride + column]
            else:
                for column in range(width):
                    for k in range(n_k):
                        panel[k * width + column] = matrix[k * k_stride + column * stride]


@inline
def rows_inside(first, n, size):
    """Return which of ``n`` rows from ``first`` on lie in range(size): the first one, counted from 0, and how many."""
    skipped = max(0, -first)
    return skipped, max(0, min(n, size - first) - skipped)


@inner
def stage(x, s, first, n_rows, padding, width, image):
    """Copy rows of sample ``s`` to ``image`` (n_rows, width, C), with zeros left and right."""
    _, height, inside, c = x.shape
    begin, end = padding * c, min(width, padding + inside) * c
    for i in range(n_rows):
        to = image[i * width * c : (i + 1) * width * c]
        to[:begin] = 0
        copy(end - begin, x.reshape(-1), (s * height + first + i) * inside * c, to, begin)
        to[end:] = 0


@inline
def source(x, s, row, n_band, n_columns, window, image):
    """Return where a band of output rows reads: pointer, its first row of the image, and numbers from row to row."""
    _, height, width, c = x.shape
    top = row * window.row_step - window.row_padding
    skipped, n_rows = rows_inside(top, (n_band - 1) * window.row_step + window.rows, height)
    if window.column_padding == 0:
        return pointer(x), -s * height, width * c
    width = (n_columns - 1) * window.column_step + window.columns
    stage(x, s, top + skipped, n_rows, window.column_padding, width, image)
    return pointer(image), top + skipped, width * c
