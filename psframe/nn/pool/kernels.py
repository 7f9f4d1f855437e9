"""Pooling of a window (:func:`largest`, :func:`sum_cells`), or of windows over a pixel, for some channels at once.

Shared parameters
-----------------
block : tuple of three tuples
    Only the lengths count, as for :func:`psframe.nn.microkernel.multiply_add`: lanes of a vector, full vectors, and
    numbers in a partial one. These are the channels.
counts : (n_a, n_b)
    Rows and columns of cells or windows.
operands : (pointer, at, a_stride, b_stride), or (pointer, at) for outputs
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from psframe.nn.lanes import Row, row_of

_CELL = ir.IntType(32)


@intrinsic
def largest(typing, block, counts, x, columns, y, where, relu):
    """Write the largest cell to ``y`` and its number, a * ``columns`` + b, to ``where`` (of an integer type).

    The first of equals counts, and NaN is larger than any number, as in PyTorch. With ``relu`` (bool), a maximum of at
    most 0 is written as 0, with the cell number -1 (no cell).
    """

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        row = _row(context, builder, block, x)
        pointer, a_stride, b_stride = row.operand(values[2])
        best = [cgutils.alloca_once_value(builder, vector) for vector in row.load(pointer)]
        cells = [cgutils.alloca_once_value(builder, vector) for vector in row.spread(_CELL(0))]
        with _cells(builder, values[1]) as (a, b):
            vectors = row.load(row.move(row.move(pointer, a_stride, a), b_stride, b))
            cell = builder.trunc(builder.add(builder.mul(a, values[3]), b), _CELL)
            for vector, number, top, at in zip(vectors, row.spread(cell), best, cells, strict=True):
                larger = builder.or_(
                    builder.fcmp_ordered(">", vector, builder.load(top)), builder.fcmp_unordered("uno", vector, vector)
                )
                builder.store(builder.select(larger, vector, builder.load(top)), top)
                builder.store(builder.select(larger, number, builder.load(at)), at)
        with builder.if_then(values[6]):
            zeros, no_cells = row.spread(row.number(0)), row.spread(_CELL(-1))
            for zero, no_cell, top, at in zip(zeros, no_cells, best, cells, strict=True):
                off = builder.fcmp_ordered("<=", builder.load(top), zero)
                builder.store(builder.select(off, zero, builder.load(top)), top)
                builder.store(builder.select(off, no_cell, builder.load(at)), at)
        row.store(row.operand(values[4])[0], [builder.load(top) for top in best])
        where_row = _row(context, builder, block, where)
        where_row.store(
            where_row.operand(values[5])[0], [_narrow(builder, builder.load(at), where_row.number) for at in cells]
        )
        return context.get_dummy_value()

    return types.void(block, counts, x, columns, y, where, relu), generate


@intrinsic
def sum_where(typing, block, counts, dy, where, cell, dx):
    """Write to ``dx`` the sum of ``dy`` over the windows of which a pixel is the largest cell.

    ``cell`` is (first, a_step, b_step): the pixel is cell first - a * a_step - b * b_step of window (a, b).
    """

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        row, where_row = _row(context, builder, block, dy), _row(context, builder, block, where)
        pointer, a_stride, b_stride = row.operand(values[2])
        place, a_place, b_place = where_row.operand(values[3])
        first, a_step, b_step = cgutils.unpack_tuple(builder, values[4])
        totals = [cgutils.alloca_once_value(builder, vector) for vector in row.spread(row.number(0))]
        with _cells(builder, values[1]) as (a, b):
            number = builder.sub(builder.sub(first, builder.mul(a, a_step)), builder.mul(b, b_step))
            wanted_cells = where_row.spread(builder.trunc(number, where_row.number))
            cells = where_row.load(where_row.move(where_row.move(place, a_place, a), b_place, b))
            vectors = row.load(row.move(row.move(pointer, a_stride, a), b_stride, b))
            for vector, at, wanted, zero, total in zip(
                vectors, cells, wanted_cells, row.spread(row.number(0)), totals, strict=True
            ):
                addend = builder.select(builder.icmp_signed("==", at, wanted), vector, zero)
                builder.store(builder.fadd(builder.load(total), addend), total)
        row.store(row.operand(values[5])[0], [builder.load(total) for total in totals])
        return context.get_dummy_value()

    return types.void(block, counts, dy, where, cell, dx), generate


@intrinsic
def write_where(typing, block, counts, dy, where, columns, dx):
    """Write ``dy`` to the cell of a window in ``dx`` that was the largest, a * ``columns`` + b, and 0 to the others."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        row, where_row = _row(context, builder, block, dy), _row(context, builder, block, where)
        zeros = row.spread(row.number(0))
        # as a sum of one: -0 becomes 0
        given = [builder.fadd(zero, v) for zero, v in zip(zeros, row.load(row.operand(values[2])[0]), strict=True)]
        cells = where_row.load(where_row.operand(values[3])[0])
        pointer, a_stride, b_stride = row.operand(values[5])
        with _cells(builder, values[1]) as (a, b):
            number = builder.trunc(builder.add(builder.mul(a, values[4]), b), where_row.number)
            wanted = where_row.spread(number)
            vectors = [
                builder.select(builder.icmp_signed("==", at, this), vector, zero)
                for at, this, vector, zero in zip(cells, wanted, given, zeros, strict=True)
            ]
            row.store(row.move(row.move(pointer, a_stride, a), b_stride, b), vectors)
        return context.get_dummy_value()

    return types.void(block, counts, dy, where, columns, dx), generate


@intrinsic
def sum_cells(typing, block, counts, x, divisor, y):
    """Write to ``y`` the sum of the cells, divided by ``divisor`` (an int)."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        row = _row(context, builder, block, x)
        pointer, a_stride, b_stride = row.operand(values[2])
        totals = [cgutils.alloca_once_value(builder, vector) for vector in row.spread(row.number(0))]
        with _cells(builder, values[1]) as (a, b):
            for vector, total in zip(
                row.load(row.move(row.move(pointer, a_stride, a), b_stride, b)), totals, strict=True
            ):
                builder.store(builder.fadd(builder.load(total), vector), total)
        divisors = row.spread(builder.sitofp(values[3], row.number))
        means = [builder.fdiv(builder.load(total), size) for total, size in zip(totals, divisors, strict=True)]
        row.store(row.operand(values[4])[0], means)
        return context.get_dummy_value()

    return types.void(block, counts, x, divisor, y), generate


def _row(context: Any, builder: ir.IRBuilder, block: Any, operand: Any) -> Row:
    """Return a row of the number type that an operand points to."""
    return row_of(context, builder, operand[0], *(len(part) for part in block))


@contextmanager
def _cells(builder: ir.IRBuilder, counts: ir.Value) -> Iterator[tuple[ir.Value, ir.Value]]:
    n_a, n_b = cgutils.unpack_tuple(builder, counts)
    with cgutils.for_range(builder, n_a) as a, cgutils.for_range(builder, n_b) as b:
        yield a.index, b.index


def _narrow(builder: ir.IRBuilder, cells: ir.Value, kind: ir.IntType) -> ir.Value:
    return cells if kind.width == _CELL.width else builder.trunc(cells, ir.VectorType(kind, cells.type.count))
