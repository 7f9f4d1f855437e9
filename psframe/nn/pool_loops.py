"""The loops of the pooling layers: windows outside, channels innermost, so that they run in vector registers.

Conventions
-----------
``x`` and ``dx`` are (n, H, W, C); ``y``, ``dy`` and ``argmax`` are (n, H', W', C); ``kernel`` and ``stride`` are
(height, width). Windows are clipped at the input's end. Rows of ``argmax`` beyond n are not used.
"""

from psframe.nn.jit import jit


@jit
def max_forward(x, y, argmax, kernel, stride):
    """Write the maxima to ``y`` and to ``argmax`` which cell of the window, counted row by row, holds them."""
    n, h, w, _ = x.shape
    for s in range(n):
        for i in range(y.shape[1]):
            for j in range(y.shape[2]):
                top, left = i * stride[0], j * stride[1]
                best, where = y[s, i, j], argmax[s, i, j]
                best[:] = x[s, top, left]
                where[:] = 0
                for a in range(min(kernel[0], h - top)):
                    for b in range(min(kernel[1], w - left)):
                        _keep_larger(x[s, top + a, left + b], a * kernel[1] + b, best, where)


@jit
def _keep_larger(values, cell, best, where):
    for c in range(len(values)):
        value = values[c]
        # as PyTorch: the first of equals, and NaN is larger than anything
        larger = value > best[c] or value != value
        best[c] = value if larger else best[c]
        where[c] = cell if larger else where[c]


@jit
def max_backward(dy, dx, argmax, kernel, stride):
    """Write to ``dx`` the sums of ``dy`` over the windows whose maximum each cell is."""
    n, h, w, _ = dx.shape
    dx[:] = 0
    for s in range(n):
        for i in range(dy.shape[1]):
            for j in range(dy.shape[2]):
                top, left = i * stride[0], j * stride[1]
                given, where = dy[s, i, j], argmax[s, i, j]
                for a in range(min(kernel[0], h - top)):
                    for b in range(min(kernel[1], w - left)):
                        _add_where(given, where, a * kernel[1] + b, dx[s, top + a, left + b])


@jit
def _add_where(given, where, cell, to):
    zero = to.dtype.type(0)
    for c in range(len(to)):
        to[c] += given[c] if where[c] == cell else zero


@jit
def avg_forward(x, y, kernel, stride):
    """Write the means of the windows to ``y``."""
    n, h, w, _ = x.shape
    for s in range(n):
        for i in range(y.shape[1]):
            for j in range(y.shape[2]):
                top, left = i * stride[0], j * stride[1]
                bottom, right = min(h, top + kernel[0]), min(w, left + kernel[1])
                mean = y[s, i, j]
                mean[:] = 0
                for a in range(top, bottom):
                    for b in range(left, right):
                        _add(x[s, a, b], 1, mean)
                mean /= (bottom - top) * (right - left)


@jit
def avg_backward(dy, dx, kernel, stride):
    """Write to ``dx`` the sums of ``dy`` over the windows that each cell is in, divided by the windows' sizes."""
    n, h, w, _ = dx.shape
    dx[:] = 0
    for s in range(n):
        for i in range(dy.shape[1]):
            for j in range(dy.shape[2]):
                top, left = i * stride[0], j * stride[1]
                bottom, right = min(h, top + kernel[0]), min(w, left + kernel[1])
                size = (bottom - top) * (right - left)
                for a in range(top, bottom):
                    for b in range(left, right):
                        _add(dy[s, i, j], size, dx[s, a, b])


@jit
def _add(values, size, to):
    divisor = to.dtype.type(size)
    for c in range(len(to)):
        to[c] += values[c] / divisor
