"""Elements of a product's operands in jitted code: numbers, or pairs of bfloat16 (:func:`per`, :func:`join`).

The type of an array says which: uint16 holds bfloat16, uint32 pairs of them, and all others numbers as they are. A pair
is of two numbers that follow each other along the sum. Where their count is odd, the last one is paired with zero.
"""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload

from psframe.nn.jit import inline

_I32, _FLOAT = ir.IntType(32), ir.FloatType()


@intrinsic
def per(typing, array):
    """Return the numbers along a sum that an element of an ``array`` holds: 2 of pairs, else 1."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return cgutils.intp_t(2 if array.dtype == types.uint32 else 1)

    return types.intp(array), generate


def room_of(rooms, part):
    """Return the buffer of a part, or None if there are none."""


@overload(room_of)
def _room_of(rooms, part):
    if rooms == types.none:
        return lambda rooms, part: None
    return lambda rooms, part: rooms[part]


def join(n, x, at, other, to, to_at):
    """Write ``n`` elements to ``to``: of numbers of ``x`` from ``at`` on and, in pairs, those from ``other`` on; where
    that is negative, zeros."""


@overload(join)
def _join(n, x, at, other, to, to_at):
    # of slices: an index that might be negative would be wrapped around, and such a loop not vectorised
    if to.dtype != types.uint32:

        def single(n, x, at, other, to, to_at):
            given, made = x[at : at + n], to[to_at : to_at + n]
            for i in range(n):
                made[i] = given[i]

        return single

    def pairs(n, x, at, other, to, to_at):
        even, made = x[at : at + n], to[to_at : to_at + n]
        if other >= 0:
            odd = x[other : other + n]
            for i in range(n):
                made[i] = np.uint32(even[i]) | np.uint32(odd[i]) << np.uint32(16)
        else:
            for i in range(n):
                made[i] = np.uint32(even[i])

    return pairs


def widened(x, part, rooms):
    """Return ``x``, or bfloat16 as float32 in the buffer of a part."""


@overload(widened)
def _widened(x, part, rooms):
    if x.dtype != types.uint16:
        return lambda x, part, rooms: x

    def of_bfloat16(x, part, rooms):
        wide = rooms[part]
        for i in range(len(x)):
            wide[i] = as_number(x[i])
        return wide

    return of_bfloat16


def element(x, at, other, has_other, like):
    """Return number ``at`` of ``x`` or, if ``like`` holds pairs, it with number ``other``, or with 0."""


@overload(element)
def _element(x, at, other, has_other, like):
    if like.dtype != types.uint32:
        return lambda x, at, other, has_other, like: x[at]

    def of_pairs(x, at, other, has_other, like):
        odd = np.uint32(x[other]) if has_other else np.uint32(0)
        return np.uint32(x[at]) | odd << np.uint32(16)

    return of_pairs


def as_number(x):
    """Return a number of an array, bfloat16 as float32."""


@overload(as_number)
def _as_number(x):
    if x != types.uint16:
        return lambda x: x
    return lambda x: number_of(np.uint32(x) << np.uint32(16))


def number_as(value, like):
    """Return ``value``, rounded if ``like`` is bfloat16."""


@overload(number_as)
def _number_as(value, like):
    if like.dtype != types.uint16:
        return lambda value, like: value
    return lambda value, like: round_bits(bits_of(np.float32(value)))


def paired(rows, pairs):
    """Return ``pairs`` if these are pairs, else ``rows`` themselves, which are its elements."""


@overload(paired)
def _paired(rows, pairs):
    if pairs.dtype == types.uint32:
        return lambda rows, pairs: pairs
    return lambda rows, pairs: rows


def pair(rows, number, pairs):
    """Write rows 2 * number and, if there is one, the next, as a row of ``pairs``; nothing if these are numbers."""


@overload(pair)
def _pair(rows, number, pairs):
    if pairs.dtype != types.uint32:
        return lambda rows, number, pairs: None

    def write(rows, number, pairs):
        (n, size), at = rows.shape, 2 * number * rows.shape[1]
        other = at + size if 2 * number + 1 < n else -1
        join(size, rows.reshape(-1), at, other, pairs.reshape(-1), number * size)

    return write


def copy(n, source, source_at, to, to_at):
    """Copy ``n`` numbers between arrays (m,) that do not overlap; either may be bfloat16.

    A slice assignment might copy them twice.
    """


@overload(copy)
def _copy(n, source, source_at, to, to_at):
    if to.dtype == source.dtype:
        return lambda n, source, source_at, to, to_at: join(n, source, source_at, -1, to, to_at)

    def widened(n, source, source_at, to, to_at):
        given, made = source[source_at : source_at + n], to[to_at : to_at + n].view(np.uint32)
        for i in range(n):
            made[i] = np.uint32(given[i]) << np.uint32(16)

    def rounded(n, source, source_at, to, to_at):
        given, made = source[source_at : source_at + n].view(np.uint32), to[to_at : to_at + n]
        for i in range(n):
            made[i] = round_bits(given[i])

    return widened if source.dtype == types.uint16 else rounded


@intrinsic
def bits_of(typing, number):
    """Return the bits of a float32 as uint32."""
    return types.uint32(types.float32), lambda context, builder, signature, values: builder.bitcast(values[0], _I32)


@intrinsic
def number_of(typing, bits):
    """Return the float32 that has these bits, uint32."""
    return types.float32(types.uint32), lambda context, builder, signature, values: builder.bitcast(values[0], _FLOAT)


@inline
def round_bits(bits):
    """Return the bits (uint32) of a float32 as bfloat16, as :func:`psframe.nn.bfloat16.rounded` does."""
    upper = bits >> np.uint32(16)
    near = (bits + (np.uint32(0x7FFF) + (upper & np.uint32(1)))) >> np.uint32(16)
    near = upper | np.uint32(0x40) if (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000) else near
    return np.uint16(upper & np.uint32(0x8000) if (bits & np.uint32(0x7F800000)) == 0 else near)


def zero_where_off(dy, y):
    """Zero ``dy`` (m,) where ``y`` (m,), the output of a ReLU, is 0: its gradient. NaN is left on."""


@overload(zero_where_off)
def _zero_where_off(dy, y):
    if y.dtype == types.uint16:

        def of_bfloat16(dy, y):
            for i in range(len(dy)):
                dy[i] = dy[i] if y[i] & np.uint16(0x7FFF) else np.uint16(0)

        return of_bfloat16

    def of_numbers(dy, y):
        for i in range(len(dy)):
            dy[i] = 0 if y[i] <= 0 else dy[i]

    return of_numbers


def zero_where_negative(x, y):
    """Write max(``x``, 0) to ``y``, both (m,); NaN stays NaN."""


@overload(zero_where_negative)
def _zero_where_negative(x, y):
    if x.dtype == types.uint16:

        def of_bfloat16(x, y):
            for i in range(len(x)):
                is_negative = x[i] >= np.uint16(0x8000) and x[i] <= np.uint16(0xFF80)
                y[i] = np.uint16(0) if is_negative else x[i]

        return of_bfloat16

    def of_numbers(x, y):
        for i in range(len(x)):
            y[i] = 0 if x[i] < 0 else x[i]

    return of_numbers


def times(x, factor):
    """Return ``x``, a number or a bfloat16, times a float32."""


@overload(times)
def _times(x, factor):
    if x != types.uint16:
        return lambda x, factor: x * factor
    return lambda x, factor: round_bits(bits_of(as_number(x) * factor))
