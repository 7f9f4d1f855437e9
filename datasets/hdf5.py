"""Arrays ``images`` and ``labels`` in an HDF5 file, read by slices (:func:`hdf5`)."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from psframe.config import untrusted_hdf5
from psframe.config.registry import PositiveInt
from psframe.datasets import files
from psframe.datasets.base import Dataset, Split
from psframe.errors import UserError

if TYPE_CHECKING:
    import h5py

LAYOUT = (
    "train/images, train/labels, test/images, test/labels; or images, labels and, at will, test_images, test_labels"
)
_Pick = Callable[[Any, int, int], np.ndarray]  # reads samples lo to hi - 1 of a split from the file's array


def hdf5(*, path: str, limit: PositiveInt | None = None) -> Dataset:
    """Return the dataset in an HDF5 file.

    Parameters
    ----------
    path : str
        File with groups ``train`` and ``test``, each with ``images`` and ``labels``; or with ``images`` and ``labels``
        and, optionally, ``test_images`` and ``test_labels`` at its root. Without test arrays every fifth sample (index
        mod 5 = 4) is a test sample. images: uint8, float32 or float64, (n, C, H, W) or (n, C, T); labels: integers
        (n,). The file's attribute ``n_classes`` is the number of classes, by default the greatest label + 1.
    limit : int, optional
        Maximum number of samples of each split.

    Returns
    -------
    Dataset
        uint8 or float32, (C, H, W) or (C, T).

    Raises
    ------
    UserError
        The file is damaged or truncated, or an array is missing, has another type, rank or length, is in another file,
        or exceeds the capacity of a file of this size. ``read`` raises for damage inside the images.
    """
    file = files.regular(path, "an HDF5 file")
    with _reading(file), untrusted_hdf5.opened(file) as f:
        train, test = (_part(f, file, *place) for place in _places(f))
        n_classes = untrusted_hdf5.attribute(f, "n_classes")
    if (train.shape, train.dtype) != (test.shape, test.dtype):
        raise UserError(
            f"training and test images must have one shape and type, got {train.shape} {train.dtype} and "
            f"{test.shape} {test.dtype} in {file}; mend the file"
        )
    if n_classes is not None and not (isinstance(n_classes, (int, np.integer)) and n_classes >= 1):
        raise UserError(
            f"the attribute n_classes must be an integer of at least 1, got {n_classes!r} in {file}; mend it"
        )
    n_classes = files.check_labels(
        {"training": train.labels, "test": test.labels}, file, None if n_classes is None else int(n_classes)
    )
    return Dataset(train.shape, train.dtype, n_classes, _split(file, train, limit), _split(file, test, limit))


@dataclass(frozen=True)
class _Part:
    """One split: name of its images' array, shape and type of a sample, and labels (n,) int64."""

    images: str
    labels: np.ndarray
    shape: tuple[int, ...]
    dtype: str
    pick: _Pick


def _whole(array: Any, lo: int, hi: int) -> np.ndarray:
    return array[lo:hi]


def _fifth(array: Any, lo: int, hi: int) -> np.ndarray:
    return array[5 * lo + 4 : 5 * hi : 5]


def _not_fifth(array: Any, lo: int, hi: int) -> np.ndarray:
    start = lo + lo // 4  # training sample i is sample i + i // 4 of the file
    block = array[start : hi + hi // 4]
    return block[np.arange(start, start + len(block)) % 5 != 4]


def _places(f: "h5py.File") -> list[tuple[str, str, _Pick]]:
    """Return, for the training and the test split, the names of images and labels and the function to read them."""
    if "train" in f or "test" in f:
        return [(f"{split}/images", f"{split}/labels", _whole) for split in ("train", "test")]
    if "test_images" in f or "test_labels" in f:
        return [("images", "labels", _whole), ("test_images", "test_labels", _whole)]
    return [("images", "labels", _not_fifth), ("images", "labels", _fifth)]


def _part(f: "h5py.File", file: Path, images_at: str, labels_at: str, pick: _Pick) -> _Part:
    images, labels = _array(f, file, images_at), _array(f, file, labels_at)
    kind, size = images.dtype.kind, images.dtype.itemsize
    if images.ndim not in (3, 4) or 0 in images.shape[1:] or (kind, size) not in (("u", 1), ("f", 4), ("f", 8)):
        raise UserError(
            f"{images_at} must be (n, C, H, W) or (n, C, T), uint8, float32 or float64, got {images.dtype} "
            f"{images.shape} in {file}; convert it"
        )
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise UserError(
            f"{labels_at} must be one integer an image, ({len(images)},), got {labels.dtype} {labels.shape} in {file}; "
            "mend the file"
        )
    values = pick(labels[()].astype(np.int64), 0, len(labels))
    return _Part(images_at, values, images.shape[1:], "uint8" if kind == "u" else "float32", pick)


def _array(f: "h5py.File", file: Path, name: str) -> "h5py.Dataset":
    found = untrusted_hdf5.array(f, name)
    if found is None:
        raise UserError(f"{file} must hold {LAYOUT}; got no array {name}: add it")
    return found


def _split(file: Path, part: _Part, limit: int | None) -> Split:
    def read(lo: int, hi: int) -> tuple[np.ndarray, np.ndarray]:
        # reopened: an open HDF5 file does not survive a fork, and reading a slice takes much longer than opening
        with _reading(file), untrusted_hdf5.opened(file) as f, np.errstate(over="ignore"):
            images = part.pick(_array(f, file, part.images), lo, hi).astype(part.dtype, copy=False)
        if part.dtype == "float32":
            files.check_finite(images, np.arange(lo, hi), f"the split {part.images} of {file}")
        return images, part.labels[lo:hi]

    return Split(min(len(part.labels), limit or len(part.labels)), read)


def _reading(file: Path) -> AbstractContextManager[None]:
    return files.reading(file, "a sound HDF5 file", RuntimeError, KeyError, TypeError, ValueError)
