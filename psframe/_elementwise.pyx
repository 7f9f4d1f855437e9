# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Sums and updates of flat float32 vectors: the only code that adds gradients or changes parameters.

Every collective and every optimizer goes through it, element by element in one fixed order of operations, compiled
without fused multiply-add and without fast-math: that is what makes the bits the same whichever way the bytes moved.
"""
from libc.math cimport sqrtf
from libc.stdlib cimport free, malloc

cdef Py_ssize_t BLOCK = 4096  # floats: 16 kB of the sum stay in L1 while every row passes by


cdef class Mean:
    """The canonical sum: ``out = (((rows[0] + rows[1]) + rows[2]) + ...) / n_samples``, a left fold.

    Parameters
    ----------
    rows : sequence of float32 arrays, shape (S,)
        In the order of the workers' numbers.
    out : float32 array, shape (S,)
        May be one of ``rows`` only where it is the first.
    """
    cdef const float **row
    cdef float[::1] out
    cdef Py_ssize_t n_rows
    cdef list keep

    def __cinit__(self, rows, float[::1] out):
        cdef const float[::1] view
        cdef Py_ssize_t i
        self.n_rows = len(rows)
        if self.n_rows == 0:
            raise ValueError("a mean needs at least one row")
        self.row = <const float **>malloc(self.n_rows * sizeof(float *))
        if self.row == NULL:
            raise MemoryError()
        self.keep = []
        self.out = out
        for i in range(self.n_rows):
            view = rows[i]
            if view.shape[0] != out.shape[0]:
                raise ValueError(f"every row must have {out.shape[0]} numbers, row {i} has {view.shape[0]}")
            self.keep.append(view)
            self.row[i] = &view[0] if view.shape[0] else NULL

    def __dealloc__(self):
        free(self.row)

    def __call__(self, n_samples):
        cdef Py_ssize_t size = self.out.shape[0], lo, hi, i, r
        cdef float n = n_samples
        cdef float *out
        cdef const float *row
        if size == 0:
            return
        out = &self.out[0]
        with nogil:
            lo = 0
            while lo < size:
                hi = min(lo + BLOCK, size)
                row = self.row[0]
                for i in range(lo, hi):
                    out[i] = row[i]
                for r in range(1, self.n_rows):
                    row = self.row[r]
                    for i in range(lo, hi):
                        out[i] = out[i] + row[i]
                for i in range(lo, hi):
                    out[i] = out[i] / n
                lo = hi


def sgd(float[::1] params, const float[::1] grads, float lr, float decay):
    """``w -= lr * (g + decay * w)``."""
    cdef Py_ssize_t i
    with nogil:
        for i in range(params.shape[0]):
            params[i] = params[i] - lr * (grads[i] + decay * params[i])


def momentum(float[::1] params, const float[::1] grads, float[::1] velocity, float lr, float mu, float decay):
    """``v = mu v + (g + decay w); w -= lr v`` (Polyak 1964)."""
    cdef Py_ssize_t i
    with nogil:
        for i in range(params.shape[0]):
            velocity[i] = mu * velocity[i] + (grads[i] + decay * params[i])
            params[i] = params[i] - lr * velocity[i]


def nesterov(float[::1] params, const float[::1] grads, float[::1] velocity, float lr, float mu, float decay):
    """``d = g + decay w; v = mu v + d; w -= lr (d + mu v)`` (Nesterov 1983, in the form of Sutskever et al. 2013)."""
    cdef Py_ssize_t i
    cdef float d
    with nogil:
        for i in range(params.shape[0]):
            d = grads[i] + decay * params[i]
            velocity[i] = mu * velocity[i] + d
            params[i] = params[i] - lr * (d + mu * velocity[i])


def adam(float[::1] params, const float[::1] grads, float[::1] first, float[::1] second, float lr, float beta1,
         float beta2, float eps, float decay, double correct1, double correct2):
    """Kingma and Ba 2015, algorithm 1; ``correct`` are its 1 - beta**t."""
    cdef Py_ssize_t i
    cdef float d, c1 = <float>correct1, c2 = <float>correct2
    with nogil:
        for i in range(params.shape[0]):
            d = grads[i] + decay * params[i]
            first[i] = beta1 * first[i] + (1 - beta1) * d
            second[i] = beta2 * second[i] + (1 - beta2) * d * d
            params[i] = params[i] - lr * (first[i] / c1) / (sqrtf(second[i] / c2) + eps)
