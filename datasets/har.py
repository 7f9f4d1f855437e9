"""Sequences of motion sensors (:func:`har`): ``.ts`` files of the UEA archive (Bagnall et al. 2018), or .npy files."""

import tokenize
from pathlib import Path

import numpy as np

from psframe.config.registry import PositiveInt
from psframe.datasets import files
from psframe.datasets.base import Dataset, Split, interleave
from psframe.datasets.ts import read_ts
from psframe.errors import UserError

#: errors of NumPy for a damaged header, which is a Python literal; it is parsed, not executed
HEADER_ERRORS = (ValueError, SyntaxError, tokenize.TokenError, TypeError, ArithmeticError, RecursionError, LookupError)
_Part = tuple[np.ndarray, np.ndarray]  # samples (n, C, T), labels (n,)


def har(*, path: str | None = None, limit: PositiveInt | None = None) -> Dataset:
    """Return labelled sequences: float32 (C, T), interleaved by class.

    Parameters
    ----------
    path : str, optional
        Folder with one NAME_TRAIN.ts and one NAME_TEST.ts, or with X_train.npy (n, C, T), y_train.npy (n,),
        X_test.npy and y_test.npy. By default BasicMotions (6 channels of a wrist's accelerometer and gyroscope, 100
        steps, 4 activities, 40 + 40 sequences), from the wheel of aeon, whose code is not imported.
    limit : int, optional
        Maximum number of samples of each split.

    Raises
    ------
    UserError
        A file is missing, damaged or has another layout, or the splits do not match.
    """
    path = path or files.carried("aeon", "aeon", "datasets/data/BasicMotions")
    root = files.folder(path, "NAME_TRAIN.ts and NAME_TEST.ts, or X_train.npy")
    if any(root.glob("*_TRAIN.ts")):
        parts, n_classes = _ts_parts(root)
    else:
        parts, n_classes = [_npy(root, split) for split in ("train", "test")], None
    (train, train_labels), (test, test_labels) = parts
    n_classes = files.check_labels({"training": train_labels, "test": test_labels}, root, n_classes)
    if train.shape[1:] != test.shape[1:]:
        raise UserError(
            f"training and test sequences must have one shape, got {train.shape[1:]} and {test.shape[1:]} in {root}; "
            "give files that belong together"
        )
    splits = [_split(*part, f"{root} ({name})", limit) for part, name in zip(parts, ("train", "test"), strict=True)]
    return Dataset(train.shape[1:], "float32", n_classes, *splits)


def _split(samples: np.ndarray, labels: np.ndarray, where: str, limit: int | None) -> Split:
    order = interleave(labels)[:limit]

    def read(lo: int, hi: int) -> tuple[np.ndarray, np.ndarray]:
        at = order[lo:hi]
        with np.errstate(over="ignore"):  # check_finite reports it as infinity
            values = samples[at].astype(np.float32)
        return files.check_finite(values, at, where), labels[at]

    return Split(len(order), read)


def _npy(root: Path, split: str) -> _Part:
    arrays = []
    for name, ranks, kinds in ((f"X_{split}.npy", 3, "f"), (f"y_{split}.npy", 1, "iu")):
        file = root / name
        if not file.is_file():
            raise UserError(
                f"{root} must hold NAME_TRAIN.ts and NAME_TEST.ts, or X_train.npy, y_train.npy, X_test.npy and "
                f"y_test.npy, got no {name}; add it, or correct dataset.path"
            )
        with files.reading(file, "an .npy file without Python objects", *HEADER_ERRORS):
            array = np.lib.format.open_memmap(file, mode="r")
        if array.ndim != ranks or array.dtype.kind not in kinds or 0 in array.shape:
            kind = "numbers (n, channels, time) of a float type" if ranks == 3 else "labels (n,) of an integer type"
            raise UserError(f"{file} must hold {kind}, got {array.dtype} {array.shape}; save it so")
        arrays.append(array)
    samples, labels = arrays
    if len(samples) != len(labels):
        raise UserError(
            f"{file} must have a label a sequence, got {len(labels)} labels for {len(samples)} sequences; "
            "give files that belong together"
        )
    return samples, labels.astype(np.int64)


def _ts_parts(root: Path) -> tuple[list[_Part], int]:
    parts: list[_Part] = []
    classes: list[str] = []
    for split in ("TRAIN", "TEST"):
        found = sorted(root.glob(f"*_{split}.ts"))
        if len(found) != 1:
            raise UserError(
                f"{root} must hold one file NAME_{split}.ts, got {len(found)}; give each dataset a folder of its own"
            )
        samples, names, declared = read_ts(found[0])
        classes = classes or declared
        unknown = sorted(set(names) - set(classes))
        if unknown:
            raise UserError(
                f"labels must be one of @classLabel, {' '.join(classes)}, got {unknown[0]!r} at sample "
                f"{names.index(unknown[0])} of {found[0]}; mend its labels"
            )
        parts.append((samples, np.array([classes.index(name) for name in names])))
    return parts, len(classes)
