"""Windows of a convolution over an image (:class:`Window`): packed weights, and zero-padded rows of images.

Images are C-contiguous, (n, H, W, C).

- Weights are packed before use, the columns of a block together; otherwise its rows would lie a page apart.
- Rows of a window outside the image are skipped. For columns outside, rows of the image are copied with zeros at both
  sides (*staged*), in bands that fit into the L2 cache.
"""

from typing import NamedTuple

from psframe.nn.jit import inline, inner
from psframe.nn.lanes import pointer
from psframe.nn.parts import columns_of, copy, share

PANEL = 64 << 10  # numbers of packed weights that stay in the L2 cache, beside images
PANEL_COLUMNS = 64  # of them: no block's, since a sum's order must not depend on the CPU's vectors


class Window(NamedTuple):
    """Size and steps of a window, and the zero padding of the image.

    ``band`` is the number of rows processed at a time: of the output, or of the input for its gradient; ``samples`` the
    number of images, and ``together`` of a window's columns times channels whose products are added to the input's
    gradient window by window.
    """

    rows: int
    columns: int
    row_step: int
    column_step: int
    row_padding: int
    column_padding: int
    band: int
    samples: int = 1
    together: int = 0


@inline
def panel_rows(n_k, n_columns):
    """Return how many rows of a window, of ``n_k`` x ``n_columns`` weights each, stay in the L2 cache when packed."""
    return max(1, PANEL // (n_k * min(n_columns, PANEL_COLUMNS)))


@inner
def pack(part, n_parts, types, weights, counts, strides, packed):
    """Copy ``weights`` (n_i, n_k, n_columns) with these ``strides`` to blocks of columns (n_i, n_k, width)."""
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
    """Return, of ``n`` rows from ``first`` on, the index of the first one in range(size), and the number in it."""
    skipped = max(0, -first)
    return skipped, max(0, min(n, size - first) - skipped)


@inner
def stage(x, s, first, n_rows, padding, width, image):
    """Copy ``n_rows`` rows of sample ``s`` to ``image`` (n_rows, width, C), with zeros left and right."""
    _, height, inside, c = x.shape
    begin, end = padding * c, min(width, padding + inside) * c
    for i in range(n_rows):
        row = image[i * width * c : (i + 1) * width * c]
        row[:begin] = 0
        copy(end - begin, x.reshape(-1), (s * height + first + i) * inside * c, row, begin)
        row[end:] = 0


@inline
def source(x, s, n, row, n_band, n_columns, window, image):
    """Return the input of a band of output rows of ``n`` samples from ``s`` on.

    A pointer, the row of the image there, numbers from one row to the next, and from one sample to the next.
    """
    _, height, width, c = x.shape
    top = row * window.row_step - window.row_padding
    skipped, n_rows = rows_inside(top, (n_band - 1) * window.row_step + window.rows, height)
    if window.column_padding == 0:
        return pointer(x), -s * height, width * c, height * width * c
    width = (n_columns - 1) * window.column_step + window.columns
    size = n_rows * width * c
    for k in range(n):
        stage(x, s + k, top + skipped, n_rows, window.column_padding, width, image[k * size :])
    return pointer(image), top + skipped, width * c, size
