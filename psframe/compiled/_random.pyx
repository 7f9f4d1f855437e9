# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Counter-based random numbers (:func:`uniform`): Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random
numbers: as easy as 1, 2, 3").

A number is a pure function of (seed, stream, epoch, sample, position), so any rank may draw it. ``stream`` separates
the numbers of one sample: 0 for the shuffle, 1 for crop, flip and cutout, 2 for initial values, 3 for synthetic data,
4 for mix-up, from 16 on for a network's layers. Key: seed (64 bits). Counter: sample (32 bits), epoch (32), stream (16)
and position (48).
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t

SHUFFLE, AUGMENT, INITIAL, SYNTHETIC, MIXUP, LAYER = 0, 1, 2, 3, 4, 16


cdef extern from "_random.h":
    void psf_philox(uint32_t *c, uint64_t seed) noexcept nogil
    void psf_counter(uint32_t *c, uint64_t stream, uint64_t epoch, uint64_t sample, uint64_t block) noexcept nogil
    void psf_uniform(uint64_t seed, uint64_t stream, uint64_t epoch, uint64_t sample, long m, float *out) noexcept nogil


def words(uint64_t seed, uint32_t[::1] counter):
    """Replace ``counter``, uint32 (4,), by Philox4x32-10 of it under the key ``seed``, for the known-answer test."""
    psf_philox(&counter[0], seed)


def uniform(uint64_t seed, uint64_t stream, uint64_t epoch, const int64_t[::1] samples, float[:, ::1] out):
    """Fill ``out``, float32 (n, m), with numbers in [0, 1): row i belongs to ``samples[i]``, int64 (n,)."""
    cdef Py_ssize_t i
    if out.shape[0] != samples.shape[0]:
        raise ValueError(f"out must have a row a sample, got {out.shape[0]} rows for {samples.shape[0]} samples")
    with nogil:
        for i in range(out.shape[0]):
            psf_uniform(seed, stream, epoch, <uint64_t>samples[i], out.shape[1], &out[i, 0])


def keys(uint64_t seed, uint64_t epoch, uint64_t[::1] out):
    """Fill ``out``, uint64 (n,), with the sort keys of samples 0 to n - 1: their order is the epoch's permutation."""
    cdef Py_ssize_t i
    cdef uint32_t c[4]
    with nogil:
        for i in range(out.shape[0]):
            psf_counter(c, 0, epoch, <uint64_t>i, 0)
            psf_philox(c, seed)
            out[i] = (<uint64_t>c[0] << 32) | c[1]
