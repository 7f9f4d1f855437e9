"""bfloat16 arithmetic in NumPy, bit for bit as the instructions have it."""

import numpy as np

U = np.uint32


def widened(x):
    """Return bfloat16 (uint16) as float32."""
    return (x.astype(U) << U(16)).view(np.float32)


def rounded(x):
    """Return float32 as bfloat16: nearest even, subnormal numbers as zeros of their sign, NaN quiet."""
    bits = np.ascontiguousarray(x, np.float32).view(U)
    near = ((bits.astype(np.uint64) + 0x7FFF + ((bits >> U(16)) & U(1))) >> np.uint64(16)).astype(U)
    near = np.where((bits & U(0x7FFFFFFF)) > U(0x7F800000), (bits >> U(16)) | U(0x40), near)
    return np.where((bits & U(0x7F800000)) == 0, (bits >> U(16)) & U(0x8000), near).astype(np.uint16)


def dot(total, x, y):
    """Return total + x.odd * y.odd + x.even * y.even of float32 and pairs (uint32), each of the sums rounded once."""
    with np.errstate(all="ignore"):
        total = _no_subnormals(np.ascontiguousarray(total, np.float32))
        for shift in (16, 0):  # the odd ones first
            total = _fused(*(_half(pairs, shift) for pairs in (x, y)), total)
    return total


def _half(pairs, shift):
    return _no_subnormals(widened(((pairs >> U(shift)) & U(0xFFFF)).astype(np.uint16))).astype(np.float64)


def _no_subnormals(x):
    bits = x.view(U).copy()
    bits[(bits & U(0x7F800000)) == 0] &= U(0x80000000)
    return bits.view(np.float32)


def _fused(x, y, total):
    """Return x * y + total as float32: the product is exact in float64, and the sum there is rounded to odd, so that
    the rounding to float32 is the only one."""
    p, q = x * y, total.astype(np.float64)
    s = p + q
    error = (p - (s - (s - p))) + (q - (s - p))
    bits = s.view(np.int64).copy()
    inexact = (error != 0) & np.isfinite(s) & ((bits & 1) == 0)
    bits[inexact] += np.where((error > 0) == (s > 0), 1, -1)[inexact]
    s = bits.view(np.float64)
    result = s.astype(np.float32)
    low = np.abs(s) < 2.0**-120  # zero where it is tiny after rounding to 24 bits with any exponent
    scaled = (s[low] * 2.0**60).astype(np.float32)
    zeros = np.copysign(np.float32(0), scaled)
    result[low] = np.where(np.abs(scaled) < np.float32(2.0**-66), zeros, (scaled * 2.0**-60).astype(np.float32))
    return result
