"""Helpers of the loaders: finding and reading files (:func:`reading`), checking labels (:func:`check_labels`)."""

import importlib.util
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from psframe.errors import UserError

MAX_CLASSES = 1_000_000  # a network has an output for each


def folder(path: str, holding: str) -> Path:
    """Return ``path`` as a folder; raises UserError if it is not one. ``holding`` names the expected content."""
    found = os.path.expanduser(path)
    if not os.path.isdir(found):
        got = "is not a folder" if os.path.exists(found) else "does not exist"
        raise UserError(
            f"dataset.path must be a folder with {holding}, got {path!r}, which {got}; correct dataset.path"
        )
    return Path(found)


def regular(path: str, kind: str) -> Path:
    """Return ``path`` as a file; raises UserError if it is not one. ``kind`` names the expected file."""
    found = os.path.expanduser(path)
    if not os.path.isfile(found):
        got = "is not a file" if os.path.exists(found) else "does not exist"
        raise UserError(f"dataset.path must be {kind}, got {path!r}, which {got}; correct dataset.path")
    return Path(found)


def carried(package: str, project: str, relative: str) -> str:
    """Return the path of a data file or folder in an installed package, which is not imported.

    Parameters
    ----------
    package, project : str
        Import name of the package, and its name for pip.
    relative : str
        Path of the file or folder, relative to the package.

    Raises
    ------
    UserError
        The package is not installed, or does not contain the file.
    """
    spec = importlib.util.find_spec(package)
    for place in (spec and spec.submodule_search_locations) or []:
        if os.path.exists(os.path.join(place, relative)):
            return os.path.join(place, relative)
    raise UserError(
        f"this dataset's file must come with the package {project}, got no {package}/{relative} here; "
        f"pip install --no-deps {project}, or give the file as dataset.path"
    )


@contextmanager
def reading(file: Path, kind: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn OSError, MemoryError and ``errors`` into a UserError: ``file`` is not a valid ``kind``."""
    expected: tuple[type[Exception], ...] = (OSError, MemoryError, *errors)
    try:
        yield
    except expected as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{file} must be {kind}, got: {reason}; give the right file, or fetch it again") from None


def check_labels(labels: Mapping[str, np.ndarray], where: Path, n_classes: int | None = None) -> int:
    """Return the number of classes: ``n_classes``, or the greatest label + 1.

    Parameters
    ----------
    labels : mapping of str to ndarray
        Labels, integers (n,), by name of the split.
    where : Path
        Source of the labels, for messages.

    Raises
    ------
    UserError
        A split without samples, a label outside [0, n_classes), or more classes than MAX_CLASSES.
    """
    for split, values in labels.items():
        if not len(values):
            raise UserError(f"the {split} split must hold at least one sample, got none in {where}; add some")
    if n_classes is None:
        n_classes = 1 + max(int(values.max()) for values in labels.values())
    if n_classes > MAX_CLASSES:
        raise UserError(f"there may be {MAX_CLASSES:,} classes, got {n_classes:,} in {where}; mend its labels")
    for split, values in labels.items():
        wrong = np.flatnonzero((values < 0) | (values >= n_classes))
        if len(wrong):
            raise UserError(
                f"labels must be 0 to {n_classes - 1}, got {values[wrong[0]]} at sample {wrong[0]} of the {split} "
                f"split of {where}; mend its labels"
            )
    return n_classes


def check_finite(images: np.ndarray, numbers: np.ndarray, where: str) -> np.ndarray:
    """Return ``images`` (n, ...); for NaN or inf, raises UserError with the sample's number from ``numbers`` (n,)."""
    finite = np.isfinite(images).all(axis=tuple(range(1, images.ndim)))
    if not finite.all():
        raise UserError(
            f"samples must be finite numbers, got NaN or infinity in sample {numbers[np.argmin(finite)]} of {where}; "
            "mend the data"
        )
    return images
