# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Batches from stored samples in one pass (:func:`gather`): select, crop, mirror, normalise, channels last."""
from libc.stdint cimport int64_t, uint8_t

ctypedef fused stored:
    uint8_t
    float


def gather(const stored[:, :, :, ::1] images, const int64_t[::1] index, const int64_t[:, ::1] place,
           const float[::1] scale, const float[::1] shift, float[:, :, :, ::1] out):
    """Fill ``out`` (n, h, w, C) float32 with ``images[index[i]] * scale[c] + shift[c]``.

    Parameters
    ----------
    images : uint8 or float32, shape (N, C, H, W)
    index : int64, shape (n,)
        Sample numbers, 0 to N - 1.
    place : int64, shape (n, 3)
        First row and column of the crop, and nonzero to mirror it left to right.
    scale, shift : float32, shape (C,)
    """
    cdef Py_ssize_t n = out.shape[0], height = out.shape[1], width = out.shape[2], channels = out.shape[3]
    cdef Py_ssize_t i, c, y, x, at, step
    cdef const stored *row
    if index.shape[0] != n or place.shape[0] != n or images.shape[1] != channels:
        raise ValueError("index, place and out must have one entry a sample, and out the channels of images")
    for i in range(n):
        if not (0 <= index[i] < images.shape[0] and 0 <= place[i, 0] <= images.shape[2] - height
                and 0 <= place[i, 1] <= images.shape[3] - width):
            raise IndexError(f"sample {index[i]} at {place[i, 0]}, {place[i, 1]} is outside the images")
    with nogil:
        for i in range(n):
            for c in range(channels):
                for y in range(height):
                    row = &images[index[i], c, place[i, 0] + y, place[i, 1]]
                    at, step = 0, 1
                    if place[i, 2]:
                        at, step = width - 1, -1
                    for x in range(width):
                        out[i, y, x, c] = row[at + step * x] * scale[c] + shift[c]
