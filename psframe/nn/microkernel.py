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

After Goto and van de Geijn 2008, "Anatomy of high-performance matrix multiplication", and for convolutions Georganas et
al. 2018, "Anatomy of high-performance deep learning convolutions on SIMD architectures".
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from psframe.nn.lanes import Row
from psframe.nn.vectors import host

_GROUP = 3  # rows addressed from one pointer, as p, p + stride, p + 2 * stride: registers are too few for one per row


@intrinsic
def multiply_add(typing, block, a, b, c, counts, start, floor, add):
    """Compute a block of a product and store it. For jitted code, without checks.

    Parameters
    ----------
    block : tuple of four tuples
        **Only the lengths** count, since they are part of the type and known at compile time: lanes of a vector, rows,
        full vectors, and numbers in a last, partial vector. Without rows or columns, nothing is done.
    a : (pointer, at, a_row, a_k, a_i)
        Pointer to float32 or float64; offset and strides are in numbers, not in bytes.
    b : (pointer, at, b_k, b_i)
    c : (pointer, at, c_row)
    counts : (n_i, n_k)
    start : (pointer or None, at)
        Initial value of every row; None: 0.
    floor : float
        max(sum, floor) is stored: with 0 a ReLU, with -inf the sum. NaN stays NaN.
    add : bool
        True to add C to the sum.
    """
    return types.void(block, a, b, c, counts, start, floor, add), _generate


def _generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
    kinds = signature.args
    lanes, n_rows, n_vectors, n_tail = (len(part) for part in kinds[0])
    if n_rows and n_vectors + n_tail:
        number = kinds[1][0].dtype  # of the pointer's target
        block = _Block(builder, context.get_value_type(number), lanes, n_vectors, n_tail)
        start = None if kinds[5][0] == types.none else values[5]
        block.generate(n_rows, values[1:5], start, context.cast(builder, values[6], kinds[6], number), values[7])
    return context.get_dummy_value()


class _Block(Row):
    """Generator of the instructions for one block."""

    def generate(self, n_rows: int, operands: Any, start: Any, floor: ir.Value, add: ir.Value) -> None:
        builder = self.builder
        a, a_row, a_k, a_i = self.operand(operands[0])
        b, b_k, b_i = self.operand(operands[1])
        n_i, n_k = cgutils.unpack_tuple(builder, operands[3])
        first = self.load(self.operand(start)[0]) if start else self.spread(self.number(0))
        sums = [[cgutils.alloca_once_value(builder, vector) for vector in first] for _ in range(n_rows)]
        pointers = [*(self.move(a, a_row, row) for row in range(0, n_rows, _GROUP)), b]
        outer = [cgutils.alloca_once_value(builder, pointer) for pointer in pointers]
        inner = [cgutils.alloca_once(builder, pointer.type) for pointer in pointers]
        with cgutils.for_range(builder, n_i):
            for slot, began in zip(inner, outer, strict=True):
                builder.store(self._opaque(builder.load(began)), slot)
            with cgutils.for_range(builder, n_k):
                self._step(inner, a_row, sums)
                self._advance(inner, a_k, b_k)
            self._advance(outer, a_i, b_i)
        self._finish(sums, self.operand(operands[2]), floor, add)

    def _step(self, slots: list[ir.Value], a_row: ir.Value, sums: list[list[ir.Value]]) -> None:
        *pointers, b = (self._opaque(self.builder.load(slot)) for slot in slots)
        row_of_b = self.load(b)
        for row, of_row in enumerate(sums):
            number = self.builder.load(self.move(pointers[row // _GROUP], a_row, row % _GROUP))
            for spread, vector, total in zip(self.spread(number), row_of_b, of_row, strict=True):
                self.builder.store(fused(self, spread, vector, self.builder.load(total)), total)

    def _advance(self, slots: list[ir.Value], a_stride: ir.Value, b_stride: ir.Value) -> None:
        for slot in slots:
            stride = b_stride if slot is slots[-1] else a_stride
            self.builder.store(self.move(self.builder.load(slot), stride), slot)

    def _finish(self, sums: list[list[ir.Value]], c: tuple[ir.Value, ...], floor: ir.Value, add: ir.Value) -> None:
        builder, (pointer, c_row) = self.builder, c
        for row, of_row in enumerate(sums):
            place = self.move(pointer, c_row, row)
            with builder.if_then(add):
                for old, total in zip(self.load(place), of_row, strict=True):
                    builder.store(builder.fadd(old, builder.load(total)), total)
            row_of_c = []
            for low, total in zip(self.spread(floor), of_row, strict=True):
                vector = builder.load(total)
                row_of_c.append(builder.select(builder.fcmp_ordered("<", vector, low), low, vector))
            self.store(place, row_of_c)

    def _opaque(self, pointer: ir.Value) -> ir.Value:
        """Return ``pointer`` through empty inline assembly, at no cost, so that LLVM leaves the loops as written.

        Otherwise it would keep a pointer per row, unroll and peel, instead of keeping the sums in registers.
        """
        identity = ir.InlineAsm(ir.FunctionType(pointer.type, [pointer.type]), "", "=r,0")
        return self.builder.call(identity, [pointer], attrs=("convergent",))


def fused(row: Row, x: ir.Value, y: ir.Value, z: ir.Value) -> ir.Value:
    """Return x * y + z of vectors, rounded once if the CPU has such an instruction."""
    if not host().fma:
        return row.builder.fadd(row.builder.fmul(x, y), z)
    return row.builder.call(row.intrinsic("fma", x.type, [x.type] * 3, [x.type]), [x, y, z])
