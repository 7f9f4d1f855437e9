"""Sums of weighted cells (:func:`weigh`), and of products of pixels (:func:`correlate`), for some channels at once.

Shared parameters
-----------------
block : tuple of four tuples
    Only the lengths count, as for :func:`psframe.nn.microkernel.multiply_add`: lanes of a vector, full vectors, numbers
    in a partial one, which are the channels; and results side by side.
counts : (n_a, n_b)
    Rows and columns that are summed over.
operands : (pointer, at, a_stride, b_stride, step)
    ``step`` is the distance from one result to the next. The output and its gradient may be bfloat16, uint16.
"""

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from psframe.nn.lanes import Row, row_of
from psframe.nn.microkernel import fused


@intrinsic
def weigh(typing, block, counts, x, weights, bias, floor, y):
    """Write bias + sum over cells of x * weights to each of the pixels side by side, where less than ``floor`` that.

    ``weights`` and ``bias`` have no step, ``y`` is (pointer, at, step). NaN stays NaN.
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        (row, n), (of_y, _) = (_row(context, builder, block, operand) for operand in (x, y))
        place, a_stride, b_stride, step = row.operand(values[2])
        weight, a_weight, b_weight = row.operand(values[3])
        first = row.load(row.operand(values[4])[0])
        sums = [[cgutils.alloca_once_value(builder, vector) for vector in first] for _ in range(n)]
        n_a, n_b = cgutils.unpack_tuple(builder, values[1])
        with cgutils.for_range(builder, n_a) as a, cgutils.for_range(builder, n_b) as b:
            of_cell = row.load(row.move(row.move(weight, a_weight, a.index), b_weight, b.index))
            cell = row.move(row.move(place, a_stride, a.index), b_stride, b.index)
            for number, of_pixel in enumerate(sums):
                for vector, by, total in zip(row.load(row.move(cell, step, number)), of_cell, of_pixel, strict=True):
                    builder.store(fused(row, vector, by, builder.load(total)), total)
        to, y_step = row.operand(values[6])
        low = row.spread(context.cast(builder, values[5], floor, x[0].dtype))
        for number, of_pixel in enumerate(sums):
            vectors = [builder.load(total) for total in of_pixel]
            off = [builder.fcmp_ordered("<", v, least) for v, least in zip(vectors, low, strict=True)]
            kept = [builder.select(*three) for three in zip(off, low, vectors, strict=True)]
            of_y.store(row.move(to, y_step, number), kept)
        return context.get_dummy_value()

    return types.void(block, counts, x, weights, bias, floor, y), generate


@intrinsic
def correlate(typing, block, counts, x, dy, total):
    """Add the sum over pixels of x * dy to each of the totals side by side.

    ``dy`` has no step, ``total`` is (pointer, at, step).
    """

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        (row, n), (of_dy, _) = (_row(context, builder, block, operand) for operand in (x, dy))
        place, a_stride, b_stride, step = row.operand(values[2])
        given, a_given, b_given = row.operand(values[3])
        to, to_step = row.operand(values[4])
        zeros = row.spread(row.number(0))
        sums = [[cgutils.alloca_once_value(builder, zero) for zero in zeros] for _ in range(n)]
        n_a, n_b = cgutils.unpack_tuple(builder, values[1])
        with cgutils.for_range(builder, n_a) as a, cgutils.for_range(builder, n_b) as b:
            of_pixel = of_dy.load(row.move(row.move(given, a_given, a.index), b_given, b.index))
            pixel = row.move(row.move(place, a_stride, a.index), b_stride, b.index)
            for number, of_total in enumerate(sums):
                for vector, by, one in zip(row.load(row.move(pixel, step, number)), of_pixel, of_total, strict=True):
                    builder.store(fused(row, vector, by, builder.load(one)), one)
        for number, of_total in enumerate(sums):
            at = row.move(to, to_step, number)
            old = row.load(at)
            row.store(at, [builder.fadd(a, builder.load(b)) for a, b in zip(old, of_total, strict=True)])
        return context.get_dummy_value()

    return types.void(block, counts, x, dy, total), generate


def _row(context: Any, builder: Any, block: Any, operand: Any) -> tuple[Row, int]:
    lanes, n_vectors, n_tail, n_results = (len(part) for part in block)
    return row_of(context, builder, operand[0], lanes, n_vectors, n_tail), n_results
