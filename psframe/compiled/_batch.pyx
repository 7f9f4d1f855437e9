# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Batches from stored samples in one pass (:func:`gather`): select, crop, flip, cut out, normalise, mix; channels last.

A row of a plan says how a sample is seen, in the columns WINDOW, FLIPS, CUT_BEGIN and CUT_END; see :func:`gather`.
"""
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memset

WINDOW, FLIPS, CUT_BEGIN, CUT_END = slice(0, 2), slice(2, 4), slice(4, 6), slice(6, 8)
N_COLUMNS = 8

ctypedef fused stored:
    uint8_t
    float


cdef extern from "_beta.h":
    float psf_beta(double alpha, float u, float v) noexcept nogil


cdef struct Frame:  # of a stored sample and of an input
    Py_ssize_t stored_height, stored_width, height, width, channels


cdef inline Py_ssize_t within(Py_ssize_t x, Py_ssize_t end) noexcept nogil:
    return 0 if x < 0 else end if x > end else x


cdef void see(const stored *image, const int64_t *plan, const float *scale, const float *shift, const Frame *frame,
              float *out) noexcept nogil:
    """Write a sample as ``plan`` says to ``out`` (height, width, channels); where there is none of it, 0."""
    cdef Py_ssize_t height = frame.height, width = frame.width, channels = frame.channels
    cdef Py_ssize_t top = plan[0], left = plan[1]
    cdef Py_ssize_t begin = within(-top, height), end = within(frame.stored_height - top, height)
    cdef Py_ssize_t first = within(-left, width), n = within(frame.stored_width - left, width) - first
    cdef Py_ssize_t c, y, x
    cdef const stored *row
    cdef float *to
    cdef float factor, term
    if end - begin < height or n < width:
        memset(out, 0, height * width * channels * sizeof(float))
    for c in range(channels):
        factor, term = scale[c], shift[c]
        for y in range(begin, end):
            row = image + (c * frame.stored_height + top + y) * frame.stored_width + left + first
            to = out + (height - 1 - y if plan[3] else y) * width * channels + c
            if plan[2]:
                to += (width - first - 1) * channels
                for x in range(n):
                    to[-x * channels] = row[x] * factor + term
            else:
                to += first * channels
                for x in range(n):
                    to[x * channels] = row[x] * factor + term
    first, n = within(plan[5], width), within(plan[7], width) - within(plan[5], width)
    if n > 0:
        for y in range(within(plan[4], height), within(plan[6], height)):
            memset(out + (y * width + first) * channels, 0, n * channels * sizeof(float))


def gather(const stored[:, :, :, ::1] images, const int64_t[::1] index, const int64_t[:, ::1] plan,
           const float[::1] shares, const float[::1] scale, const float[::1] shift, float[::1] spare,
           float[:, :, :, ::1] out):
    """Fill ``out`` (n, h, w, C) float32 with ``images[index[i]] * scale[c] + shift[c]``, seen as ``plan[i]`` says.

    With ``shares`` it is ``shares[i]`` times that, plus ``1 - shares[i]`` times sample ``index[n + i]`` seen as
    ``plan[n + i]`` says.

    Parameters
    ----------
    images : uint8 or float32, shape (N, C, H, W)
    index : int64, shape (n,) or (2 n,)
        Sample numbers, 0 to N - 1.
    plan : int64, shape (len(index), N_COLUMNS)
        First row and column of the window in the sample, which zeros surround; nonzero to mirror the window left to
        right, and to turn it upside down; first row and column of what is replaced by 0 there; and the ends of both.
    shares : float32, shape (n,) or (0,)
        In [0, 1].
    scale, shift : float32, shape (C,)
    spare : float32, shape (h w C,) or larger, or (1,) without shares
        Overwritten.
    """
    cdef Py_ssize_t n = out.shape[0], size = out.shape[1] * out.shape[2] * out.shape[3], i, k
    cdef Frame frame
    cdef bint mixes = shares.shape[0] > 0
    cdef float own, other
    cdef float *target
    cdef float *mixed = &spare[0]
    frame.stored_height, frame.stored_width = images.shape[2], images.shape[3]
    frame.height, frame.width, frame.channels = out.shape[1], out.shape[2], out.shape[3]
    if index.shape[0] != n * (1 + mixes) or plan.shape[0] != index.shape[0] or plan.shape[1] != N_COLUMNS:
        raise ValueError("index and plan must have one row a sample, and one more for each that is mixed in")
    if images.shape[1] != frame.channels or (mixes and (shares.shape[0] != n or spare.shape[0] < size)):
        raise ValueError("out must have the channels of images, and shares one entry a sample, spare room for one")
    for i in range(index.shape[0]):
        if not 0 <= index[i] < images.shape[0]:
            raise IndexError(f"sample {index[i]} is outside the {images.shape[0]} images")
    with nogil:
        for i in range(n):
            target = &out[i, 0, 0, 0]
            see(&images[index[i], 0, 0, 0], &plan[i, 0], &scale[0], &shift[0], &frame, target)
            if mixes:
                see(&images[index[n + i], 0, 0, 0], &plan[n + i, 0], &scale[0], &shift[0], &frame, mixed)
                own, other = shares[i], 1 - shares[i]
                for k in range(size):
                    target[k] = own * target[k] + other * mixed[k]


def mix(const float[:, ::1] drawn, int64_t n_samples, double alpha, int64_t[::1] partners, float[::1] shares):
    """Draw for each of n samples another one to mix it with, and its own share of the mixture.

    Parameters
    ----------
    drawn : float32, shape (n, 4)
        Uniform in [0, 1).
    n_samples : int
        ``partners``, int64 (n,), receives sample numbers below it, all equally likely.
    alpha : float
        Above 0; ``shares``, float32 (n,), receives numbers of Beta(alpha, alpha).
    """
    cdef Py_ssize_t i
    if drawn.shape[1] != 4 or partners.shape[0] != drawn.shape[0] or shares.shape[0] != drawn.shape[0]:
        raise ValueError("drawn must have four numbers a sample, and partners and shares one")
    with nogil:
        for i in range(drawn.shape[0]):
            # two numbers of 24 bits make one of 48, as there may be more samples than the first can tell apart
            partners[i] = <int64_t>((<double>drawn[i, 0] + <double>drawn[i, 1] / 16777216) * n_samples)
            shares[i] = psf_beta(alpha, drawn[i, 2], drawn[i, 3])
