"""Pooling in plain NumPy (:func:`max_forward` and others): the reference for the compiled loops.

Arguments are those of :mod:`psframe.nn.pool.loops`.
"""

from collections.abc import Iterator

import numpy as np

Pair = tuple[int, int]
Place = tuple[slice, ...]


def _cells(x: np.ndarray, y: np.ndarray, kernel: Pair, stride: Pair) -> Iterator[tuple[int, Place, Place]]:
    """Yield, per cell of a window, its number, its pixels in ``x``, and the windows in ``y`` that contain it."""
    for a, b in np.ndindex(kernel):
        counts = [
            min(n, max(0, -(-(size - first) // step)))
            for n, size, first, step in zip(y.shape[1:3], x.shape[1:3], (a, b), stride, strict=True)
        ]
        if min(counts) > 0:
            inside = [
                slice(first, first + (n - 1) * step + 1, step)
                for n, first, step in zip(counts, (a, b), stride, strict=True)
            ]
            yield a * kernel[1] + b, (slice(None), *inside), (slice(None), slice(counts[0]), slice(counts[1]))


def max_forward(x: np.ndarray, y: np.ndarray, argmax: np.ndarray, kernel: Pair, stride: Pair, relu: bool) -> None:
    for cell, inside, windows in _cells(x, y, kernel, stride):
        value, best, where = x[inside], y[windows], argmax[windows]
        larger = np.full(value.shape, True) if cell == 0 else (value > best) | np.isnan(value)
        np.copyto(best, value, where=larger)
        np.copyto(where, np.array(cell).astype(where.dtype), where=larger)
    if relu:
        off = y <= 0
        y[off], argmax[off] = 0, np.array(-1).astype(argmax.dtype)


def max_backward(dy: np.ndarray, dx: np.ndarray, argmax: np.ndarray, kernel: Pair, stride: Pair) -> None:
    dx[:] = 0
    for cell, inside, windows in _cells(dx, dy, kernel, stride):
        dx[inside] += np.where(argmax[windows] == np.array(cell).astype(argmax.dtype), dy[windows], 0)


def avg_forward(x: np.ndarray, y: np.ndarray, kernel: Pair, stride: Pair) -> None:
    y[:] = 0
    for _, inside, windows in _cells(x, y, kernel, stride):
        y[windows] += x[inside]
    y /= _sizes(x, y, kernel, stride)


def avg_backward(dy: np.ndarray, dx: np.ndarray, kernel: Pair, stride: Pair) -> None:
    dy /= _sizes(dx, dy, kernel, stride)
    dx[:] = 0
    for _, inside, windows in _cells(dx, dy, kernel, stride):
        dx[inside] += dy[windows]


def _sizes(x: np.ndarray, y: np.ndarray, kernel: Pair, stride: Pair) -> np.ndarray:
    """Return the number of cells of each window inside the input, (1, H', W', 1)."""
    sizes = np.zeros((1, *y.shape[1:3], 1), y.dtype)
    for _, _, windows in _cells(x, y, kernel, stride):
        sizes[windows] += 1
    return sizes
