"""Transforms of tiles (:func:`transform`): the matrices of minimal filtering, applied to vectors of channels.

``m`` x ``m`` outputs of a 3x3 convolution are ``A^T [(G g G^T) * (B^T d B)] A``, of the weights ``g`` and of the pixels
``d`` below the outputs' windows, (m + 2) x (m + 2): as many products for each channel, in place of 9 an output
(Winograd 1980, "Arithmetic complexity of computations"; Lavin and Gray 2016, "Fast algorithms for convolutional neural
networks"). The weights' gradient is ``G^T [(B^T d B) * (A e A^T)] G``, with the outputs' gradients ``e``. The matrices
are those of Toom and Cook for some points (Barabasz et al. 2020, "Error analysis and improving the accuracy of Winograd
convolution for deep neural networks").
"""

from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from psframe.nn.lanes import Row
from psframe.nn.microkernel import fused

Matrix = Sequence[Sequence[Fraction]]

KERNEL = 3
#: by outputs at a tile's side: the points, besides infinity, of small numbers and small errors
POINTS = {2: ("0", "1", "-1"), 4: ("0", "1", "-1", "1/2", "-2")}


#: B^T of an input's tile, G of weights, A^T of an output, and for gradients A of an output's, G^T of weights'
INPUT, WEIGHTS, OUTPUT, OUTPUT_GRADIENT, WEIGHTS_GRADIENT = ((None,) * number for number in range(5))


@cache
def matrices(m: int) -> tuple[Matrix, ...]:
    """Return the matrices T by kind; B^T is (m + 2, m + 2), G (m + 2, 3) and A^T (m, m + 2)."""
    points = [Fraction(point) for point in POINTS[m]]
    of_input = [_polynomial([b for b in points if b != a], m + 2) for a in points]
    scales = [sum(factor * a**k for k, factor in enumerate(row)) for a, row in zip(points, of_input, strict=True)]
    of_weights = [[a**k / scale for k in range(KERNEL)] for a, scale in zip(points, scales, strict=True)]
    of_weights.append([Fraction(k == KERNEL - 1) for k in range(KERNEL)])
    of_output = [[*(a**i for a in points), Fraction(i == m - 1)] for i in range(m)]
    turned = [[*zip(*matrix, strict=True)] for matrix in (of_output, of_weights)]
    return [*of_input, _polynomial(points, m + 2)], of_weights, of_output, *turned


def _polynomial(roots: Sequence[Fraction], size: int) -> list[Fraction]:
    """Return the coefficients of the product of all ``x - root``, from that of 1 to that of x ** (size - 1)."""
    factors = [Fraction(1)]
    for root in roots:
        factors = [a - root * b for a, b in zip([Fraction(0), *factors], [*factors, Fraction(0)], strict=True)]
    return factors + [Fraction(0)] * (size - len(factors))


@intrinsic
def transform(typing, kind, read, write, start, floor, limits):
    """Write ``T d T^T`` for a vector of channels, with a matrix T. For jitted code, without checks.

    Parameters
    ----------
    kind : tuple of four tuples
        **Only the lengths** count: m; ``INPUT`` and so on, the matrix; lanes of a vector, and numbers in a partial one,
        which is then the only one.
    read, write : (pointer, at, row, column)
        Of d and of the result; strides from number to number of a channel.
    start : (pointer or None, at)
        What is added to every number of a channel; None: nothing, and all is written as it is.
    floor : float
        max(number, floor) is written; NaN stays NaN.
    limits : (n_rows, n_columns)
        No more of these are written.
    """
    return types.void(kind, read, write, start, floor, limits), _generate


def _generate(context: Any, builder: ir.IRBuilder, signature: Any, values: Any) -> Any:
    (kind, source, _, start, of_floor, _), (_, read, write, more, floor, limits) = signature.args, values
    m, which, lanes, tail = (len(part) for part in kind)
    row, matrix = Row(builder, context.get_value_type(source[0].dtype), lanes, tail == 0, tail), matrices(m)[which]
    given, to, n = row.operand(read), row.operand(write), len(matrix[0])
    columns = [_product(row, matrix, [row.load(_place(row, given, i, j))[0] for i in range(n)]) for j in range(n)]
    result = [_product(row, matrix, [column[i] for column in columns]) for i in range(len(matrix))]
    if start[0] != types.none:
        added = row.load(row.operand(more)[0])[0]
        least = row.spread(context.cast(builder, floor, of_floor, source[0].dtype))[0]
        result = [[_floored(builder, builder.fadd(number, added), least) for number in line] for line in result]
    is_cut = start[0] != types.none
    n_rows, n_columns = cgutils.unpack_tuple(builder, limits)
    for i, line in enumerate(result):
        with builder.if_then(_is_inside(builder, i, n_rows) if is_cut else ir.Constant(ir.IntType(1), 1)):
            for j, number in enumerate(line):
                with builder.if_then(_is_inside(builder, j, n_columns) if is_cut else ir.Constant(ir.IntType(1), 1)):
                    row.store(_place(row, to, i, j), [number])
    return context.get_dummy_value()


def _place(row: Row, at: Sequence[ir.Value], i: int, j: int) -> ir.Value:
    pointer, row_stride, column_stride = at
    return row.move(row.move(pointer, row_stride, i), column_stride, j)


def _is_inside(builder: ir.IRBuilder, number: int, size: ir.Value) -> ir.Value:
    return builder.icmp_signed("<", ir.Constant(size.type, number), size)


def _floored(builder: ir.IRBuilder, number: ir.Value, least: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_ordered("<", number, least), least, number)


def _product(row: Row, matrix: Matrix, vectors: Sequence[ir.Value]) -> list[ir.Value]:
    """Return each row of a matrix times vectors, from the first term on; a term of 1 comes first, if there is one."""
    return [_sum(row, sorted(zip(line, vectors, strict=True), key=lambda term: term[0] != 1)) for line in matrix]


def _sum(row: Row, terms: Sequence[tuple[Fraction, ir.Value]]) -> ir.Value:
    builder, total = row.builder, None
    for factor, vector in terms:
        constant = ir.Constant(vector.type, [float(factor)] * vector.type.count)
        if not factor:
            continue
        if total is None:
            total = vector if factor == 1 else builder.fmul(constant, vector)
        elif abs(factor) == 1:
            total = (builder.fadd if factor == 1 else builder.fsub)(total, vector)
        else:
            total = fused(row, constant, vector, total)
    return total
