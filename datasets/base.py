"""Definition of a dataset (:class:`Dataset`): two splits read by slices, and the transformation to the network's input.

A loader is a function whose keyword-only parameters are its YAML keys (``psframe.config.registry``). It checks headers
and sizes, raises :class:`psframe.errors.UserError` for errors in them, and returns a :class:`Dataset`. Its slices are
then read once per node, into memory that the node's ranks share.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

#: ``read(lo, hi)`` returns images (hi - lo, *shape) and integer labels (hi - lo,) of samples lo to hi - 1
Read = Callable[[int, int], tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Split:
    """Split of ``n`` samples, read by slices."""

    n: int
    read: Read


@dataclass(frozen=True)
class Dataset:
    """Images or sequences with one label each.

    Attributes
    ----------
    shape : tuple of int
        Shape of a stored sample: (C, H, W), or (C, T) for sequences.
    dtype : str
        Type of a stored sample, ``uint8`` or ``float32``.
    n_classes : int
        Labels are 0 to n_classes - 1.
    train, test : Split
    crop : (int, int) or None
        Height and width of the network's input if smaller than stored: training samples are cropped at a random place,
        test samples at the centre.
    flip : bool
        True if training samples are mirrored left to right with probability 1/2.
    mean, std : tuple of float or None
        Per channel, in stored units: the input is ``(x - mean) / std``. None: measured on the training split.
    """

    shape: tuple[int, ...]
    dtype: str
    n_classes: int
    train: Split
    test: Split
    crop: tuple[int, int] | None = None
    flip: bool = False
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of the network's input for one sample: (C, H, W) or (C, T)."""
        return self.shape if self.crop is None else (self.shape[0], *self.crop)


def held(images: np.ndarray, labels: np.ndarray, limit: int | None = None) -> Split:
    """Return the first ``limit`` samples, all by default, of arrays in memory, or mapped, as a split."""
    n = len(labels) if limit is None else min(limit, len(labels))
    return Split(n, lambda lo, hi: (images[lo:hi], labels[lo:hi]))


def interleave(labels: np.ndarray) -> np.ndarray:
    """Return an order, int64 (n,), with one sample of each class in turn.

    So the first samples contain every class even if a file is sorted by class.
    """
    turn = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        (of_class,) = np.nonzero(labels == label)
        turn[of_class] = np.arange(len(of_class))
    return np.lexsort((labels, turn))


def stratified(labels: np.ndarray, one_in: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Return (train, test) sample numbers: every ``one_in``-th sample of each class, in file order, is a test sample.

    Both are interleaved by class, and deterministic.
    """
    test = np.zeros(len(labels), bool)
    for label in np.unique(labels):
        (of_class,) = np.nonzero(labels == label)
        test[of_class[one_in - 1 :: one_in]] = True
    (train_at,), (test_at,) = np.nonzero(~test), np.nonzero(test)
    return train_at[interleave(labels[train_at])], test_at[interleave(labels[test_at])]
