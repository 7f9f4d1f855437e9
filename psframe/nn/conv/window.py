"""Windows of a convolution over an image (:class:`Window`): packed weights, and zero-padded rows of images.

Images are C-contiguous, (n, H, W, C).

- Weights are packed before use, the columns of a block together; otherwise its rows would lie a page apart.
- Rows of a window outside the image are skipped. For columns outside, rows of the image are copied with zeros at both
  sides (*staged*), in bands that fit into the L2 cache.
"""

from typing import NamedTuple

from numba.extending import overload

from psframe.nn.jit import inline, inner
from psframe.nn.lanes import pointer
from psframe.nn.pairs import element, join, per
from psframe.nn.parts import columns_of, share

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
    """Copy ``weights`` (n_i, n_k, n_columns) with these ``strides`` to blocks of columns (n_i, n_k, width).

    Pairs are along k, which is then half as many.
    """
    (n_i, n_numbers, n_columns), (i_stride, k_stride, stride) = counts, strides
    in_one = per(packed)
    n_k = -(-n_numbers // in_one)
    block, last, n_blocks = columns_of(types, n_columns)
    for number in share(n_blocks + 1, part, n_parts):
        width = block if number < n_blocks else last
        for i in range(n_i):
            panel = packed[(number * block * n_i + i * width) * n_k :]
            matrix = weights[number * block * stride + i * i_stride :]
            if stride == 1:
                for k in range(n_k):
                    at = in_one * k * k_stride
                    join(width, matrix, at, at + k_stride if in_one * k + 1 < n_numbers else -1, panel, k * width)
            else:
                for column in range(width):
                    for k in range(n_k):
                        at, has_other = in_one * k * k_stride + column * stride, in_one * k + 1 < n_numbers
                        panel[k * width + column] = element(matrix, at, at + k_stride, has_other, packed)


@inline
def rows_inside(first, n, size):
    """Return, of ``n`` rows from ``first`` on, the index of the first one in range(size), and the number in it."""
    skipped = max(0, -first)
    return skipped, max(0, min(n, size - first) - skipped)


@inner
def stage(x, s, first, n_rows, padding, width, image):
    """Copy ``n_rows`` rows of sample ``s`` to ``image`` (n_rows, width, C), with zeros left and right.

    Pairs are of this sample and the next one, if there is one.
    """
    n, height, inside, c = x.shape
    begin, end = padding * c, min(width, padding + inside) * c
    for i in range(n_rows):
        row = image[i * width * c : (i + 1) * width * c]
        row[:begin] = 0
        at = (s * height + first + i) * inside * c
        join(end - begin, x.reshape(-1), at, at + height * inside * c if s + 1 < n else -1, row, begin)
        row[end:] = 0


def source(x, s, n, row, n_band, n_columns, window, image):
    """Return the input of a band of output rows of ``n`` samples, or pairs of samples, from ``s`` on.

    A pointer, the row of the image there, elements from one row to the next, and from one sample to the next. It is
    ``x`` itself where its columns are not padded, else staged. Pairs always are.
    """


@overload(source)
def _source(x, s, n, row, n_band, n_columns, window, image):
    if image.dtype == x.dtype:

        def single(x, s, n, row, n_band, n_columns, window, image):
            _, height, width, c = x.shape
            if window.column_padding == 0:
                return pointer(x), -s * height, width * c, height * width * c
            return staged(x, s, n, row, n_band, n_columns, window, image)

        return single

    def pairs(x, s, n, row, n_band, n_columns, window, image):
        return staged(x, s, n, row, n_band, n_columns, window, image)

    return pairs


@inline
def staged(x, s, n, row, n_band, n_columns, window, image):
    """Stage the input of a band; see :func:`source`."""
    _, height, _, c = x.shape
    top = row * window.row_step - window.row_padding
    skipped, n_rows = rows_inside(top, (n_band - 1) * window.row_step + window.rows, height)
    width = (n_columns - 1) * window.column_step + window.columns
    size = n_rows * width * c
    for k in range(n):
        stage(x, s + per(image) * k, top + skipped, n_rows, window.column_padding, width, image[k * size :])
    return pointer(image), top + skipped, width * c, size


def output(dy, s, n, row, n_band, room):
    """Return a band of the output's gradient of ``n`` samples, or pairs of samples, from ``s`` on.

    A pointer, the place of the first number there, and elements from one sample to the next.
    """


@overload(output)
def _output(dy, s, n, row, n_band, room):
    if room.dtype == dy.dtype:

        def single(dy, s, n, row, n_band, room):
            _, n_rows, n_columns, out = dy.shape
            return pointer(dy), (s * n_rows + row) * n_columns * out, n_rows * n_columns * out

        return single

    def pairs(dy, s, n, row, n_band, room):
        n_samples, n_rows, n_columns, out = dy.shape
        size, of_sample = n_band * n_columns * out, n_rows * n_columns * out
        for k in range(n):
            sample = s + 2 * k
            at = sample * of_sample + row * n_columns * out
            join(size, dy.reshape(-1), at, at + of_sample if sample + 1 < n_samples else -1, room, k * size)
        return pointer(room), 0, size

    return pairs
