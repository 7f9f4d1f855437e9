"""Learnable samples from a formula (:func:`synthetic`): no file, any size."""

from math import prod

import numpy as np

from psframe import compiled
from psframe.config.registry import PositiveInt
from psframe.datasets.base import Dataset, Split
from psframe.datasets.files import MAX_CLASSES
from psframe.errors import UserError

TEMPLATE, TRAIN, TEST = 0, 1, 2  # used instead of the epoch in the random generator's counter
MAX_NUMBERS = 1 << 28  # of a sample: a GiB


def synthetic(
    *,
    shape: tuple[PositiveInt, ...] = (1, 28, 28),
    classes: PositiveInt = 10,
    samples: PositiveInt = 4096,
    limit: PositiveInt | None = None,
) -> Dataset:
    """Return samples that are the template of their class plus noise, both uniform in [-1, 1): float32.

    Sample i has class i mod ``classes``. The counter-based generator with seed 0 gives the same numbers in every
    process.

    Parameters
    ----------
    shape : tuple of int
        (C, H, W), or (C, T) for sequences.
    classes : int
    samples : int
        Number of training samples; max(classes, samples // 5) more are test samples.
    limit : int, optional
        Maximum number of samples of each split.

    Raises
    ------
    UserError
        ``shape`` does not have two or three positive entries, or it or ``classes`` exceeds its limit.
    """
    if len(shape) not in (2, 3) or min(shape) < 1:
        raise UserError(
            f"dataset.shape must have 2 or 3 positive entries, got {list(shape)}; write [C, H, W] or [C, T]"
        )
    if classes > MAX_CLASSES or prod(shape) > MAX_NUMBERS:
        raise UserError(
            f"dataset.classes and a sample of dataset.shape may have {MAX_CLASSES:,} and {MAX_NUMBERS:,} numbers, "
            f"got {classes:,} and {prod(shape):,}; give less"
        )
    templates = _numbers(TEMPLATE, 0, classes, shape)

    def split(n: int, kind: int) -> Split:
        def read(lo: int, hi: int) -> tuple[np.ndarray, np.ndarray]:
            labels = np.arange(lo, hi) % classes
            images = _numbers(kind, lo, hi, shape)
            images += templates[labels]
            return images, labels

        return Split(min(n, limit or n), read)

    return Dataset(shape, "float32", classes, split(samples, TRAIN), split(max(classes, samples // 5), TEST))


def _numbers(kind: int, lo: int, hi: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return the numbers of samples lo to hi - 1, uniform in [-1, 1): float32 (hi - lo, *shape)."""
    out = np.empty((hi - lo, prod(shape)), np.float32)
    compiled.random.uniform(0, compiled.random.SYNTHETIC, kind, np.arange(lo, hi, dtype=np.int64), out)
    out *= 2
    out -= 1
    return out.reshape(-1, *shape)
