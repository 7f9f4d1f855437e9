# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Counter-based random numbers (:func:`uniform`): Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random
numbers: as easy as 1, 2, 3").

A number is a pure function of (seed, stream, epoch, sample, position), so any rank may draw it. ``stream`` separates
the numbers of one sample: 0 for the shuffle, 1 for crop and flip, 2 for initial values, 3 for synthetic data, from 16
on for a network's layers. Key: seed (64 bits). Counter: sample (32 bits), epoch (32), stream (16) and position (48).
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t

SHUFFLE, AUGMENT, INITIAL, SYNTHETIC, LAYER = 0, 1, 2, 3, 16


cdef inline void philox(uint32_t *c, uint64_t seed) noexcept nogil:
    cdef uint32_t k0 = <uint32_t>seed, k1 = <uint32_t>(seed >> 32), c0, c2
    cdef uint64_t p0, p1
    cdef int _round
    for _round in range(10):
        p0 = <uint64_t>0xD2511F53 * c[0]
        p1 = <uint64_t>0xCD9E8D57 * c[2]
        c0 = <uint32_t>(p1 >> 32) ^ c[1] ^ k0
        c2 = <uint32_t>(p0 >> 32) ^ c[3] ^ k1
        c[1] = <uint32_t>p1
        c[3] = <uint32_t>p0
        c[0] = c0
        c[2] = c2
        k0 = k0 + <uint32_t>0x9E3779B9U
        k1 = k1 + <uint32_t>0xBB67AE85U


cdef inline void draw(uint32_t *c, uint64_t seed, uint64_t stream, uint64_t epoch, uint64_t sample,
                      uint64_t block) noexcept nogil:
    c[0] = <uint32_t>sample
    c[1] = <uint32_t>epoch
    c[2] = <uint32_t>((stream << 16) | ((block >> 32) & 0xFFFF))
    c[3] = <uint32_t>block
    philox(c, seed)


def words(uint64_t seed, uint32_t[::1] counter):
    """Replace ``counter``, uint32 (4,), by Philox4x32-10 of it under the key ``seed``, for the known-answer test."""
    philox(&counter[0], seed)


def uniform(uint64_t seed, uint64_t stream, uint64_t epoch, const int64_t[::1] samples, float[:, ::1] out):
    """Fill ``out``, float32 (n, m), with numbers in [0, 1): row i belongs to ``samples[i]``, int64 (n,)."""
    cdef Py_ssize_t i, j, k, m = out.shape[1]
    cdef uint32_t c[4]
    if out.shape[0] != samples.shape[0]:
        raise ValueError(f"out must have a row a sample, got {out.shape[0]} rows for {samples.shape[0]} samples")
    with nogil:
        for i in range(out.shape[0]):
            for j in range(0, m, 4):
                draw(c, seed, stream, epoch, <uint64_t>samples[i], <uint64_t>j >> 2)
                for k in range(min(4, m - j)):
                    out[i, j + k] = (c[k] >> 8) * <float>(1.0 / 16777216.0)


def keys(uint64_t seed, uint64_t epoch, uint64_t[::1] out):
    """Fill ``out``, uint64 (n,), with the sort keys of samples 0 to n - 1: their order is the epoch's permutation."""
    cdef Py_ssize_t i
    cdef uint32_t c[4]
    with nogil:
        for i in range(out.shape[0]):
            draw(c, seed, 0, epoch, <uint64_t>i, 0)
            out[i] = (<uint64_t>c[0] << 32) | c[1]
