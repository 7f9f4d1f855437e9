"""Sums and maps over the places of an image (:func:`moments` and others), for some channels in vector registers.

Shared parameters
-----------------
block : tuple of three tuples
    Only the lengths count, as for :func:`psframe.nn.microkernel.multiply_add`: lanes of a vector, full vectors, and
    numbers in a partial one. These are the channels.
n : int
    Places, one after the other.
x, dy, dx, and the output y : (pointer, at, stride)
    ``stride`` is the distance from one place to the next. uint16 is bfloat16.
by_channel, sums, of_means : (pointer, at, stride)
    Rows of numbers by channel, of float32 or float64, ``stride`` apart.
floor : float
    The output was max(z, floor), z = (x - mean) * scale + shift: with 0 a ReLU, with -inf z itself.
around, and y of gradients : (pointer, at, stride)
    With a shortcut, what goes around is part of z, and the output is at hand; without one the pointers are None.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from psframe.nn.lanes import Row, row_of
from psframe.nn.microkernel import fused

Vectors = list[ir.Value]


@intrinsic
def moments(typing, block, n, x, near, by_channel):
    """Write to two rows the sums of d and of d * d, where d is the difference from the number at the place ``near``."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        row, of_x = (_row(context, builder, block, operand) for operand in (by_channel, x))
        shifts = of_x.load(row.operand(values[3])[0])
        totals = _Totals(row, 2)
        with _places(row, values[1], values[2]) as (place,):
            d = [builder.fsub(number, shift) for number, shift in zip(of_x.load(place), shifts, strict=True)]
            totals.add(0, d)
            totals.add_products(1, d, d)
        totals.store(values[4])
        return context.get_dummy_value()

    return types.void(block, n, x, near, by_channel), generate


@intrinsic
def normalize(typing, block, n, x, by_channel, around, floor, y):
    """Write max(z, ``floor``) to ``y``; rows by channel are mean, scale and shift. NaN stays NaN."""

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        row, of_x, of_y = (_row(context, builder, block, operand) for operand in (by_channel, x, y))
        channels, low = _rows(row, values[3], 3), _spread(context, row, values[5], floor, by_channel)
        others = [values[4]] if _is_there(around) else []
        with _places(row, values[1], values[2], values[6], *others) as (place, to, *of_others):
            _, z = _output(row, of_x.load(place), channels)
            for other in of_others:
                z = [builder.fadd(number, more) for number, more in zip(z, of_x.load(other), strict=True)]
            off = [builder.fcmp_ordered("<", number, least) for number, least in zip(z, low, strict=True)]
            of_y.store(to, [builder.select(*three) for three in zip(off, low, z, strict=True)])
        return context.get_dummy_value()

    return types.void(block, n, x, by_channel, around, floor, y), generate


@intrinsic
def gradient_sums(typing, block, n, x, dy, by_channel, floor, y, around, sums):
    """Write to two rows the sums of g and of g * (x - mean), where g is ``dy``, or 0 where z is at most ``floor``.

    With a shortcut, g is written to ``around``, too: the gradient of what goes around.
    """

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        row, of_x, of_dy = (_row(context, builder, block, operand) for operand in (by_channel, x, dy))
        channels, low = _rows(row, values[4], 3), _spread(context, row, values[5], floor, by_channel)
        totals, others = _Totals(row, 2), [values[6], values[7]] if _is_there(around) else []
        with _places(row, values[1], values[2], values[3], *others) as (place, given, *of_others):
            d, z = _output(row, of_x.load(place), channels)
            output = _row(context, builder, block, y).load(of_others[0]) if of_others else z
            g = _where_on(row, output, low, of_dy.load(given))
            if of_others:
                of_dy.store(of_others[1], g)
            totals.add(0, g)
            totals.add_products(1, g, d)
        totals.store(values[8])
        return context.get_dummy_value()

    return types.void(block, n, x, dy, by_channel, floor, y, around, sums), generate


@intrinsic
def input_gradient(typing, block, n, x, dy, by_channel, floor, of_means, dx):
    """Write scale * g - a - b * (x - mean) to ``dx``; the rows of ``of_means`` are a and b, g as above.

    ``dy`` and ``dx`` may be one.
    """

    def generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
        row, of_x, of_dy = (_row(context, builder, block, operand) for operand in (by_channel, x, dy))
        channels, low = _rows(row, values[4], 3), _spread(context, row, values[5], floor, by_channel)
        means = _rows(row, values[6], 2)
        with _places(row, values[1], values[2], values[3], values[7]) as (place, given, to):
            d, z = _output(row, of_x.load(place), channels)
            g = _where_on(row, z, low, of_dy.load(given))
            gradients = [
                builder.fsub(builder.fsub(builder.fmul(scale, number), a), builder.fmul(b, difference))
                for number, difference, scale, a, b in zip(g, d, channels[1], *means, strict=True)
            ]
            of_dy.store(to, gradients)
        return context.get_dummy_value()

    return types.void(block, n, x, dy, by_channel, floor, of_means, dx), generate


def _is_there(operand: Any) -> bool:
    return bool(operand[0] != types.none)


class _Totals:
    """Sums of vectors in registers."""

    def __init__(self, row: Row, n: int):
        self.row, zeros = row, row.spread(row.number(0))
        self.slots = [[cgutils.alloca_once_value(row.builder, zero) for zero in zeros] for _ in range(n)]

    def add(self, number: int, vectors: Vectors) -> None:
        builder = self.row.builder
        for slot, vector in zip(self.slots[number], vectors, strict=True):
            builder.store(builder.fadd(builder.load(slot), vector), slot)

    def add_products(self, number: int, a: Vectors, b: Vectors) -> None:
        builder = self.row.builder
        for slot, x, y in zip(self.slots[number], a, b, strict=True):
            builder.store(fused(self.row, x, y, builder.load(slot)), slot)

    def store(self, rows: ir.Value) -> None:
        to, stride = self.row.operand(rows)
        for number, slots in enumerate(self.slots):
            self.row.store(self.row.move(to, stride, number), [self.row.builder.load(slot) for slot in slots])


def _row(context: Any, builder: ir.IRBuilder, block: Any, operand: Any) -> Row:
    return row_of(context, builder, operand[0], *(len(part) for part in block))


def _rows(row: Row, operand: ir.Value, n: int) -> list[Vectors]:
    pointer, stride = row.operand(operand)
    return [row.load(row.move(pointer, stride, number)) for number in range(n)]


def _spread(context: Any, row: Row, value: ir.Value, kind: Any, like: Any) -> Vectors:
    return row.spread(context.cast(row.builder, value, kind, like[0].dtype))


@contextmanager
def _places(row: Row, n: ir.Value, *operands: ir.Value) -> Iterator[tuple[ir.Value, ...]]:
    """Loop over places; yield each operand's address there."""
    starts = [row.operand(operand) for operand in operands]
    with cgutils.for_range(row.builder, n) as loop:
        yield tuple(row.move(pointer, stride, loop.index) for pointer, stride in starts)


def _output(row: Row, x: Vectors, channels: list[Vectors]) -> tuple[Vectors, Vectors]:
    """Return x - mean, and z."""
    mean, scale, shift = channels
    d = [row.builder.fsub(number, middle) for number, middle in zip(x, mean, strict=True)]
    return d, [fused(row, *three) for three in zip(d, scale, shift, strict=True)]


def _where_on(row: Row, output: Vectors, low: Vectors, given: Vectors) -> Vectors:
    """Return ``given``, or 0 where the output was not more than the floor."""
    zero = row.spread(row.number(0))
    off = [row.builder.fcmp_ordered("<=", number, least) for number, least in zip(output, low, strict=True)]
    return [row.builder.select(*three) for three in zip(off, zero, given, strict=True)]
