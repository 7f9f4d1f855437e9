"""Loops of :mod:`psframe.collectives.codecs`, compiled by Numba (:func:`to_fp16`, :func:`to_topk`, ...).

All IEEE operations have an explicit order, so that a wider vector register changes no bit.
"""

import numpy as np

from psframe.nn.jit import inline, inner, jit

# every U32 keeps a value in 32 bits; Numba would promote it to 64, and halve the numbers in a vector register. Numba's
# .view() accepts only a value cast in the same expression
U16, U32, F32, F64 = np.uint16, np.uint32, np.float32, np.float64


@jit
def to_fp16(bits, out):
    for i in range(len(bits)):
        size = U32(bits[i] & U32(0x7FFFFFFF))
        # exponent bias from 127 to 15; plus half of the last place kept, or a bit less at an even one
        rounded = U32(U32(size - U32(112 << 23)) + U32(0xFFF) + U32(U32(size >> U32(13)) & U32(1)))
        half = min(U32(rounded >> U32(13)), U32(0x7BFF))
        # below 2**-14, halves have the spacing of float32 in [0.5, 1), to which the sum is rounded
        small = U32(F32(U32(size).view(F32) + F32(0.5)).view(U32) - U32(0x3F000000))
        half = small if size < U32(113 << 23) else half
        special = U32(0x7E00) if size > U32(0x7F800000) else U32(0x7C00)
        half = special if size >= U32(0x7F800000) else half
        out[i] = U16(half | U32(U32(bits[i] >> U32(16)) & U32(0x8000)))


@jit
def add_fp16(halves, total):
    for i in range(len(total)):
        half = U32(halves[i] & U16(0x7FFF))
        large = U32(U32(half << U32(13)) + (U32(224 << 23) if half >= U32(0x7C00) else U32(112 << 23))).view(F32)
        small = F32(np.int32(half)) * F32(2**-24)
        value = small if half < U32(0x400) else large
        total[i] += -value if halves[i] & U16(0x8000) else value


@jit
def to_bf16(bits, out):
    for i in range(len(bits)):
        b = bits[i]
        rounded = U32(U32(b + U32(0x7FFF)) + U32(U32(b >> U32(16)) & U32(1)))  # half of the last place, to even
        # rounding could carry a NaN into infinity or zero; only its lower half may distinguish it from infinity
        is_nan = U32(b & U32(0x7FFFFFFF)) > U32(0x7F800000)
        out[i] = U16(U32(U32(b | U32(0x400000)) if is_nan else rounded) >> U32(16))


@jit
def add_bf16(halves, total):
    for i in range(len(total)):
        total[i] += U32(U32(halves[i]) << U32(16)).view(F32)


@jit
def to_onebit(x, residual, block, means, words):
    # as many blocks at a time as fill complete words, while they are in a cache
    stride = block if block % 32 == 0 else 32 * block
    for low in range(0, len(x), stride):
        high = min(low + stride, len(x))
        for start in range(low, high, block):
            part, j = slice(start, min(start + block, high)), 2 * (start // block)
            means[j], means[j + 1] = _accumulate(x[part], residual[part])
        _pack(residual[low:high], words[low // 32 :])
        for start in range(low, high, block):
            values, j = residual[start : min(start + block, high)], 2 * (start // block)
            upper, lower = means[j], means[j + 1]
            for i in range(len(values)):
                values[i] -= upper if values[i] >= 0 else lower


@inner
def _accumulate(x, values):
    """Add ``x`` to ``values``, and return the means of those then >= 0 and of the others, float32.

    Each mean is of four float64 sums of every fourth number: in a single sum, each addition would wait for the previous
    one. A maximum (0 for NaN) is one instruction; a branch on v >= 0 would be mispredicted half the time.
    """
    a0 = a1 = a2 = a3 = b0 = b1 = b2 = b3 = 0.0
    n_upper, n = 0, len(values)
    for i in range(n):
        values[i] += x[i]
    for j in range(n // 4):
        v0, v1, v2, v3 = F64(values[4 * j]), F64(values[4 * j + 1]), F64(values[4 * j + 2]), F64(values[4 * j + 3])
        u0, u1, u2, u3 = max(0.0, v0), max(0.0, v1), max(0.0, v2), max(0.0, v3)
        a0, a1, a2, a3 = a0 + u0, a1 + u1, a2 + u2, a3 + u3
        b0, b1, b2, b3 = b0 + (v0 - u0), b1 + (v1 - u1), b2 + (v2 - u2), b3 + (v3 - u3)
        n_upper += (v0 >= 0) + (v1 >= 0) + (v2 >= 0) + (v3 >= 0)
    for i in range(n - n % 4, n):
        v = F64(values[i])
        a0, b0 = a0 + max(0.0, v), b0 + (v - max(0.0, v))
        n_upper += v >= 0
    upper, lower = (a0 + a1) + (a2 + a3), (b0 + b1) + (b2 + b3)
    return F32(upper / max(n_upper, 1)), F32(lower / max(n - n_upper, 1))


@inner
def _pack(values, words):
    for j in range((len(values) + 31) // 32):
        word, part = U32(0), values[32 * j : 32 * j + 32]
        for i in range(len(part)):
            word = U32(word | U32(U32(part[i] >= 0) << U32(i)))
        words[j] = word


@jit
def add_onebit(means, words, block, total):
    """Add block by block, and word by word within; ``means`` (2 n_blocks,) uint32 are the bits of the floats."""
    for start in range(0, len(total), block):
        i, stop, j = start, min(start + block, len(total)), 2 * (start // block)
        while i < stop:
            word, n = U32(words[i // 32] >> U32(i % 32)), min(32 - i % 32, stop - i)
            if n == 32:  # a constant length, which the compiler can vectorize
                _add_word(word, 32, means[j], means[j + 1], total[i:])
            else:
                _add_word(word, n, means[j], means[j + 1], total[i:])
            i += n


@inline
def _add_word(word, n, upper, lower, total):
    for i in range(n):
        # selects between integers: between floats, some CPUs would branch
        chosen = upper if U32(word >> U32(i)) & U32(1) else lower
        total[i] += U32(chosen).view(F32)


@jit
def to_topk(x, residual, histogram, indices, values):
    """Find the k-th largest magnitude by its upper 16 bits, then by its lower 15: a radix selection."""
    histogram[:] = 0
    for i in range(len(x)):
        residual[i] += x[i]
        histogram[_rank(residual[i]) >> U32(15)] += 1
    upper, n_left = _descend(histogram, len(indices))
    histogram[:] = 0
    for i in range(len(x)):
        rank = _rank(residual[i])
        if U32(rank >> U32(15)) == upper:
            histogram[rank & U32(0x7FFF)] += 1
    lower, n_left = _descend(histogram, n_left)
    threshold, n_sent = U32(U32(upper << U32(15)) | lower), 0
    for i in range(len(x)):
        rank = _rank(residual[i])
        if rank > threshold or (rank == threshold and n_left > 0):
            n_left -= rank == threshold  # of equal magnitudes, as many as there is room for
            indices[n_sent], values[n_sent], residual[i] = i, residual[i], 0
            n_sent += 1


@inline
def _rank(value):
    """Return 31 bits that increase with the magnitude: those of the float, with all NaN equal."""
    return U32(min(U32(F32(value).view(U32) & U32(0x7FFFFFFF)), U32(0x7F800001)))


@inner
def _descend(histogram, k):
    """Return the bin of the k-th largest, and its place among those in that bin, from 1."""
    at = len(histogram) - 1
    while histogram[at] < k:
        k -= histogram[at]
        at -= 1
    return U32(at), k


@jit
def add_topk(indices, values, total):
    for j in range(len(indices)):
        total[indices[j]] += values[j]
