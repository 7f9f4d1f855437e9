"""Transpose of a matrix (:func:`transpose`), by tiles in registers."""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from psframe.nn.blocking import Lengths
from psframe.nn.jit import inline
from psframe.nn.lanes import Row

_LANE = ir.IntType(32)
ROWS = 8  # of a tile, at most


def tile(lanes: int, n_rows: int, n_columns: int) -> tuple[Lengths, Lengths]:
    """Return the tile for a matrix, with ``lanes`` numbers in a vector."""
    columns, rows = (1 << min(most, n).bit_length() - 1 for most, n in ((lanes, n_columns), (ROWS, n_rows)))
    return (None,) * columns, (None,) * rows


@inline
def transpose(tile, counts, source, to):
    """Write the transpose of ``source`` (n_rows, n_columns) to ``to``, which does not overlap it.

    Parameters
    ----------
    tile : tuple of two tuples
        Only the lengths count: columns of a tile, and its rows; powers of two.
    counts : (n_rows, n_columns)
    source, to : (pointer, at, stride)
        Stride from row to row of each, in numbers, which lie side by side in a row.
    """
    (columns, rows), (n_rows, n_columns), (x, x_at, x_row), (y, y_at, y_row) = tile, counts, source, to
    for r in range(0, n_rows - len(rows) + 1, len(rows)):
        for c in range(0, n_columns - len(columns) + 1, len(columns)):
            _tile(tile, (x, x_at + r * x_row + c, x_row), (y, y_at + c * y_row + r, y_row))
    full_rows, full_columns = n_rows - n_rows % len(rows), n_columns - n_columns % len(columns)
    for r in range(n_rows):
        for c in range(full_columns if r < full_rows else 0, n_columns):
            _tile(((None,), (None,)), (x, x_at + r * x_row + c, x_row), (y, y_at + c * y_row + r, y_row))


@intrinsic
def _tile(typing, tile, source, to):
    """Write the transpose of a tile."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        (n_columns, n_rows), number = map(len, tile), context.get_value_type(source[0].dtype)
        row, piece = Row(builder, number, n_columns, 1, 0), Row(builder, number, min(n_columns, n_rows), 1, 0)
        pointer, stride = row.operand(values[1])
        place, to_stride = row.operand(values[2])
        vectors = [row.load(row.move(pointer, stride, r))[0] for r in range(n_rows)]
        # a perfect shuffle of all numbers for each bit of a row's number, which so comes behind the column's
        for _ in range(n_rows.bit_length() - 1 if n_columns > 1 else 0):
            halves = zip(vectors[: n_rows // 2], vectors[n_rows // 2 :], strict=True)
            vectors = [_zipped(builder, *pair, begin) for pair in halves for begin in (0, n_columns // 2)]
        size = min(n_columns, n_rows)
        for at in range(0, n_rows * n_columns, size):
            column, r = divmod(at, n_rows)
            numbers = _shuffled(builder, [vectors[at // n_columns]] * 2, range(at % n_columns, at % n_columns + size))
            piece.store(row.move(row.move(place, to_stride, column), ir.IntType(64)(r)), [numbers])
        return context.get_dummy_value()

    return types.void(tile, source, to), generate


def _zipped(builder: ir.IRBuilder, x: ir.Value, y: ir.Value, begin: int) -> ir.Value:
    """Return half of the numbers of both, from ``begin`` on, in turn."""
    n = x.type.count
    return _shuffled(builder, [x, y], [begin + lane // 2 + n * (lane % 2) for lane in range(n)])


def _shuffled(builder: ir.IRBuilder, vectors: list[ir.Value], order: Any) -> ir.Value:
    return builder.shuffle_vector(*vectors, ir.Constant(ir.VectorType(_LANE, len(order)), list(order)))
