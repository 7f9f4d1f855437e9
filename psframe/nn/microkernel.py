"""Inner loop of convolutions and dense layers (:func:`multiply_add`).

It computes a small block of a product, entirely in registers::

    C[r][c] = start[c] + sum over i < n_i, k < n_k of  A[i*a_i + k*a_k + r*a_row] * B[i*b_i + k*b_k + c]

                       one row of B a step:  |--- vector ---|--- vector ---|- tail -|
                                             |              |              |        |
    one number of A a row:          r = 0  x |  acc[0][0]   |  acc[0][1]   | [0][2] |
                                    r = 1  x |  acc[1][0]   |  acc[1][1]   | [1][2] |
                                    r = 2  x |  acc[2][0]   |  acc[2][1]   | [2][2] |

A step (one i, one k) loads a row of ``B`` as vectors. For every row of the block it broadcasts one number of ``A`` to
a vector, multiplies, and adds to the row's accumulators. So rows x vectors operations need only rows + vectors loads
and are independent: about ten of them keep the core's multipliers busy.

The strides make it a convolution (k over the columns and channels of the window, i over its rows, r over pixels), the
gradient of its weights (k and i over pixels, r over the window), or a dense layer (k over features, r over samples);
no window is copied (no im2col). The sum runs over i and k in order, independent of block and vectors: a number has the
same bits in every block.

In bfloat16, B consists of pairs along the sum: two numbers beside each other in 32 bits. Or it has rows of numbers, two
of which are made pairs in registers. A's numbers are pairs, too, from any place on, and a step adds two products; of an
odd number, the last step adds one. Sums, and what they start from, are float32; C may be either, and is rounded when it
is stored. See :mod:`psframe.nn.bfloat16`.

After Goto and van de Geijn 2008, "Anatomy of high-performance matrix multiplication", and for convolutions Georganas et
al. 2018, "Anatomy of high-performance deep learning convolutions on SIMD architectures".
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from psframe.nn import bfloat16
from psframe.nn.lanes import Row, row_of
from psframe.nn.vectors import host

Spread = Callable[[ir.Value], list[ir.Value]]
Load = Callable[[ir.Value, ir.Value], list[ir.Value]]

_BIT = ir.IntType(1)
_GROUP = 3  # rows addressed from one pointer, as p, p + stride, p + 2 * stride: registers are too few for one per row


@intrinsic
def multiply_add(typing, block, a, b, c, counts, start, floor, old, add):
    """Compute a block of a product and store it. For jitted code, without checks.

    Parameters
    ----------
    block : tuple of four tuples
        **Only the lengths** count, since they are part of the type and known at compile time: lanes of a vector, rows,
        full vectors, and numbers in a last, partial vector. Without rows or columns, nothing is done.
    a : (pointer, at, a_row, a_k, a_i)
        Pointer to float32 or float64, or in bfloat16 to uint16, or uint32 where b has pairs; offset and strides are in
        numbers of its type, not in bytes.
    b : (pointer, at, b_k, b_i)
        Of a's type, or uint32 for pairs of bfloat16; b_k is the stride of a row of numbers, or of pairs.
    c : (pointer, at, c_row)
        Of a's type; in bfloat16 to float32, or to uint16.
    counts : (n_i, n_k)
        In elements of A: pairs if it points to uint32, else numbers.
    start : (pointer or None, at) or (pointer, at, start_row)
        Initial values of every row, or of rows that are so far apart; None: 0.
    floor : float
        max(sum, floor) is stored: with 0 a ReLU, with -inf the sum. NaN stays NaN.
    old : (pointer, at, old_row)
        What is added to the sum before that; often ``c`` itself.
    add : bool
        False to add nothing.
    """
    return types.void(block, a, b, c, counts, start, floor, old, add), _generate


def _generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
    kinds = signature.args
    lanes, n_rows, n_vectors, n_tail = (len(part) for part in kinds[0])
    if n_rows and n_vectors + n_tail:
        generator = {types.uint32: _Pairs, types.uint16: _Rows}.get(kinds[2][0].dtype, _Block)
        generator(context, builder, kinds, (lanes, n_vectors, n_tail)).generate(n_rows, values)
    return context.get_dummy_value()


class _Block:
    """Generator of the instructions for one block of float32 or float64."""

    narrowest = 1
    rows_a_step = 1  # of B

    def __init__(self, context: Any, builder: ir.IRBuilder, kinds: Any, sizes: tuple[int, ...]):
        self.context, self.builder, self.kinds = context, builder, kinds
        self.sizes = (*sizes, self.narrowest)
        self.row = Row(builder, self.number, *self.sizes)
        self.of_b = Row(builder, self.element, *self.sizes)
        self.of_c, self.of_old = (row_of(context, builder, kinds[place][0], *self.sizes) for place in (3, 7))

    @property
    def number(self) -> ir.Type:
        """Type of the sums."""
        return self.context.get_value_type(self.kinds[1][0].dtype)

    @property
    def element(self) -> ir.Type:
        """Type of what a step multiplies: a number, or a pair."""
        return self.number

    def spread(self, pointer: ir.Value) -> list[ir.Value]:
        """Return a row with the number of A that ``pointer`` points to in every lane."""
        return self.of_b.spread(self.builder.load(pointer))

    def load(self, b: ir.Value, b_k: ir.Value) -> list[ir.Value]:
        """Return the row of B for a step; ``b_k`` is the stride of its rows."""
        return self.of_b.load(b)

    def multiply_add(self, x: ir.Value, y: ir.Value, total: ir.Value) -> ir.Value:
        return fused(self.row, x, y, total)

    def generate(self, n_rows: int, values: Any) -> None:
        builder, row, (_, a, b, c, counts, start, floor, old, add) = self.builder, self.row, values
        a, a_row, a_k, a_i = row.operand(a)
        b, b_k, b_i = row.operand(b)
        n_i, n_k = cgutils.unpack_tuple(builder, counts)
        has_start = self.kinds[5][0] != types.none
        begin, *apart = row.operand(start) if has_start else (None,)
        first = row.load(begin) if has_start else row.spread(row.number(0))
        starts = [row.load(row.move(begin, apart[0], number)) if apart else first for number in range(n_rows)]
        sums = [[cgutils.alloca_once_value(builder, vector) for vector in vectors] for vectors in starts]
        pointers = [*(row.move(a, a_row, number) for number in range(0, n_rows, _GROUP)), b]
        outer = [cgutils.alloca_once_value(builder, pointer) for pointer in pointers]
        inner = [cgutils.alloca_once(builder, pointer.type) for pointer in pointers]
        with cgutils.for_range(builder, n_i):
            for slot, began in zip(inner, outer, strict=True):
                builder.store(self._opaque(builder.load(began)), slot)
            with cgutils.for_range(builder, self.steps(n_k)):
                self._step(inner, a_row, b_k, sums, self.spread, self.load)
                self._advance(inner, a_k, row.times(b_k, self.rows_a_step))
            self.last_step(n_k, partial(self._step, inner, a_row, b_k, sums))
            self._advance(outer, a_i, b_i)
        floor = self.context.cast(builder, floor, self.kinds[6], _FLOATS[row.suffix])
        self._finish(sums, row.operand(c), floor, row.operand(old), add)

    def steps(self, n_k: ir.Value) -> ir.Value:
        """Return the number of full steps for ``n_k`` elements of A."""
        return n_k

    def last_step(self, n_k: ir.Value, step: Callable[[Spread, Load], None]) -> None:
        """Generate what follows the full steps."""

    def _step(
        self, slots: list[ir.Value], a_row: ir.Value, b_k: ir.Value, sums: list[list[ir.Value]], spread_of: Spread,
        load: Load,
    ) -> None:  # fmt: skip
        *pointers, b = (self._opaque(self.builder.load(slot)) for slot in slots)
        row_of_b = load(b, b_k)
        for number, of_row in enumerate(sums):
            spread = spread_of(self.row.move(pointers[number // _GROUP], a_row, number % _GROUP))
            for x, y, total in zip(spread, row_of_b, of_row, strict=True):
                self.builder.store(self.multiply_add(x, y, self.builder.load(total)), total)

    def _advance(self, slots: list[ir.Value], a_stride: ir.Value, b_stride: ir.Value) -> None:
        for slot in slots:
            stride = b_stride if slot is slots[-1] else a_stride
            self.builder.store(self.row.move(self.builder.load(slot), stride), slot)

    def _finish(self, sums: list[list[ir.Value]], c: Any, floor: ir.Value, old: Any, add: ir.Value) -> None:
        builder, row, (place, c_row), (before, old_row) = self.builder, self.row, c, old
        for number, of_row in enumerate(sums):
            with builder.if_then(add):
                for vector, total in zip(self.of_old.load(row.move(before, old_row, number)), of_row, strict=True):
                    builder.store(builder.fadd(vector, builder.load(total)), total)
            row_of_c = []
            for low, total in zip(row.spread(floor), of_row, strict=True):
                vector = builder.load(total)
                row_of_c.append(builder.select(builder.fcmp_ordered("<", vector, low), low, vector))
            self.of_c.store(row.move(place, c_row, number), row_of_c)

    def _opaque(self, pointer: ir.Value) -> ir.Value:
        """Return ``pointer`` through empty inline assembly, at no cost, so that LLVM leaves the loops as written.

        Otherwise it would keep a pointer per row, unroll and peel, instead of keeping the sums in registers.
        """
        identity = ir.InlineAsm(ir.FunctionType(pointer.type, [pointer.type]), "", "=r,0")
        return self.builder.call(identity, [pointer], attrs=("convergent",))


class _Pairs(_Block):
    """Generator of the instructions for one block of pairs of bfloat16."""

    narrowest = bfloat16.NARROWEST
    number, element = ir.FloatType(), ir.IntType(32)

    def spread(self, pointer: ir.Value) -> list[ir.Value]:
        pair = self.builder.load(self.builder.bitcast(pointer, self.of_b.number.as_pointer()))
        pair.align = self.kinds[1][0].dtype.bitwidth // 8
        return self.of_b.spread(pair)

    @property
    def of_numbers(self) -> bool:
        """True if A consists of numbers, two of which make a pair."""
        return bool(self.kinds[1][0].dtype.bitwidth == 16)

    def steps(self, n_k: ir.Value) -> ir.Value:
        return self.builder.lshr(n_k, n_k.type(1)) if self.of_numbers else n_k

    def last_step(self, n_k: ir.Value, step: Callable[[Spread, Load], None]) -> None:
        if self.of_numbers:
            with self.builder.if_then(self.builder.trunc(n_k, _BIT), likely=False):
                step(self.spread_half, self.load_half)

    def spread_half(self, pointer: ir.Value) -> list[ir.Value]:
        """Return a row with the number that ``pointer`` points to, and 0, as a pair in every lane."""
        return self.of_b.spread(self.builder.zext(self.builder.load(pointer), self.of_b.number))

    def load_half(self, b: ir.Value, b_k: ir.Value) -> list[ir.Value]:
        """Return the row of B for a last step of one number."""
        return self.of_b.load(b)

    def multiply_add(self, x: ir.Value, y: ir.Value, total: ir.Value) -> ir.Value:
        return bfloat16.dot(self.builder, total, x, y)


class _Rows(_Pairs):
    """Generator of the instructions for one block of bfloat16, where B has rows of numbers: two a step."""

    rows_a_step = 2

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self.numbers_of_b = Row(self.builder, ir.IntType(16), *self.sizes)

    def load(self, b: ir.Value, b_k: ir.Value) -> list[ir.Value]:
        even, odd = (self.numbers_of_b.load(self.row.move(b, b_k, number)) for number in range(2))
        return [bfloat16.zipped(self.builder, *numbers) for numbers in zip(even, odd, strict=True)]

    def load_half(self, b: ir.Value, b_k: ir.Value) -> list[ir.Value]:
        rows = zip(self.numbers_of_b.load(b), self.of_b.columns, strict=True)
        return [self.builder.zext(numbers, ir.VectorType(self.element, width)) for numbers, (width, _) in rows]


_FLOATS = {"f32": types.float32, "f64": types.float64}


def fused(row: Row, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """Return x * y + z of vectors, rounded once if the CPU has such an instruction."""
    if not host().fma:
        return row.builder.fadd(row.builder.fmul(x, y), z)
    return row.builder.call(row.intrinsic("fma", x.type, [x.type] * 3, [x.type]), [x, y, z])
