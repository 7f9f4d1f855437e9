"""LLVM's instructions for bfloat16 (:func:`dot`, :func:`zipped`, :func:`rounded`), or others with the same bits.

A bfloat16 is the upper half of a float32, in an array of uint16. A pair is two of them in a uint32, the even one in the
lower half. CPUs with ``avx512bf16`` (Cooper Lake, Sapphire Rapids, Zen 4) add two products of pairs in one instruction,
as two fused multiply-adds, the odd numbers first, each rounded once to nearest even; subnormal numbers count, and come
out, as zeros of their sign (Intel 64 and IA-32 Architectures Software Developer's Manual, VDPBF16PS). Other CPUs, and
those on which the instruction is slower, multiply and add twice: to the same bits, while they treat subnormal numbers
so (:mod:`psframe.nn.subnormal`).
"""

from llvmlite import ir
from numba.core import cgutils

from psframe.nn.vectors import host

_I16, _I32, _FLOAT = ir.IntType(16), ir.IntType(32), ir.FloatType()
NARROWEST = 4  # lanes of the instruction's narrowest vector


def dot(builder: ir.IRBuilder, total: ir.Value, x: ir.Value, y: ir.Value) -> ir.Value:
    """Return total + x.odd * y.odd + x.even * y.even, of float32 and vectors of pairs, of 4, 8 or 16 lanes."""
    if host().fast_bf16:
        # LLVM's own type, a vector of bfloat, is not llvmlite's; it upgrades the older form, which this is
        kind = ir.FunctionType(total.type, [total.type, x.type, y.type])
        return builder.call(_function(builder, f"x86.avx512bf16.dpbf16ps.{32 * total.type.count}", kind), [total, x, y])
    kind = ir.FunctionType(total.type, [total.type] * 3)
    fma = _function(builder, f"fma.v{total.type.count}f32", kind)
    for half in (_odd, _even):
        total = builder.call(fma, [half(builder, x), half(builder, y), total])
    return total


def zipped(builder: ir.IRBuilder, even: ir.Value, odd: ir.Value) -> ir.Value:
    """Return two vectors of bfloat16 as one of pairs."""
    n = even.type.count
    order = ir.Constant(_vector(_I32, 2 * n), [lane // 2 + n * (lane % 2) for lane in range(2 * n)])
    return builder.bitcast(builder.shuffle_vector(even, odd, order), _vector(_I32, n))


def widened(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Return a vector of bfloat16 as float32."""
    return _even(builder, builder.zext(x, _vector(_I32, x.type.count)))


def rounded(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    """Return a vector of float32 as bfloat16, to nearest even; subnormal numbers to zeros of their sign, NaN quiet."""
    if not host().bf16:
        return _rounded_by_integers(builder, x)
    width = x.type.count
    x = _resized(builder, x, max(8, width))
    kind = ir.FunctionType(_vector(_I16, x.type.count), [x.type])
    name = f"x86.avx512bf16.cvtneps2bf16.{32 * x.type.count}"
    return _resized(builder, builder.call(_function(builder, name, kind), [x]), width)


def _rounded_by_integers(builder: ir.IRBuilder, x: ir.Value) -> ir.Value:
    kind = _vector(_I32, x.type.count)

    def number(value: int) -> ir.Constant:
        return ir.Constant(kind, [value] * kind.count)

    bits = builder.bitcast(x, kind)
    upper = builder.lshr(bits, number(16))
    last = builder.and_(upper, number(1))
    near = builder.lshr(builder.add(bits, builder.add(last, number(0x7FFF))), number(16))
    is_nan = builder.icmp_unsigned(">", builder.and_(bits, number(0x7FFFFFFF)), number(0x7F800000))
    is_tiny = builder.icmp_unsigned("==", builder.and_(bits, number(0x7F800000)), number(0))
    near = builder.select(is_nan, builder.or_(upper, number(0x40)), near)
    near = builder.select(is_tiny, builder.and_(upper, number(0x8000)), near)
    return builder.trunc(near, _vector(_I16, kind.count))


def _odd(builder: ir.IRBuilder, pair: ir.Value) -> ir.Value:
    upper = ir.Constant(pair.type, [-(1 << 16)] * pair.type.count)
    return builder.bitcast(builder.and_(pair, upper), _vector(_FLOAT, pair.type.count))


def _even(builder: ir.IRBuilder, pair: ir.Value) -> ir.Value:
    by = ir.Constant(pair.type, [16] * pair.type.count)
    return builder.bitcast(builder.shl(pair, by), _vector(_FLOAT, pair.type.count))


def _resized(builder: ir.IRBuilder, x: ir.Value, width: int) -> ir.Value:
    """Return a vector with so many lanes: the first ones of ``x``, and any beyond."""
    if x.type.count == width:
        return x
    order = [min(lane, x.type.count - 1) for lane in range(width)]
    return builder.shuffle_vector(x, ir.Constant(x.type, ir.Undefined), ir.Constant(_vector(_I32, width), order))


def _function(builder: ir.IRBuilder, name: str, kind: ir.FunctionType) -> ir.Function:
    return cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}")


def _vector(kind: ir.Type, width: int) -> ir.VectorType:
    return ir.VectorType(kind, width)
