"""Images as lines ``pixel,...,pixel,label`` of a .csv.gz file (:func:`digit_csv`)."""

import gzip
import zlib
from pathlib import Path

import numpy as np

from psframe.datasets import files
from psframe.datasets.base import Dataset, held, stratified
from psframe.errors import UserError

MAX_BYTES = 64 << 20  # unpacked; the largest supported file has 9 MB


def digit_csv(file: Path, side: int, limit: int | None) -> Dataset:
    """Return the digits of a .csv.gz file, split by ``stratified``: every fifth of each class is a test sample.

    Parameters
    ----------
    file : Path
        File with one line per sample: ``side * side`` pixels, 0 to 255, and the label, 0 to 9.
    limit : int or None
        Maximum number of samples of each split.

    Returns
    -------
    Dataset
        uint8 (1, side, side), 10 classes.

    Raises
    ------
    UserError
        The file is damaged, or a line has another format.
    """
    kind = f"gzip'ed lines of {side * side} pixels (0 to 255) and a label"
    with files.reading(file, kind, EOFError, zlib.error, ValueError), gzip.open(file) as f:
        unpacked = f.read(MAX_BYTES + 1)
        if len(unpacked) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES:,} bytes when unpacked")
        lines = unpacked.decode("ascii").splitlines()
        table = np.loadtxt(lines, np.int64, delimiter=",", comments=None, ndmin=2) if lines else np.empty((0, 0))
    if table.shape[1] != side * side + 1 or table.min() < 0 or table.max() > 255:
        raise UserError(
            f"{file} must be {kind}, got {table.shape[0]} lines of {table.shape[1]} numbers; correct dataset.path"
        )
    images, labels = table[:, :-1].astype(np.uint8).reshape(-1, 1, side, side), table[:, -1]
    files.check_labels({"whole": labels}, file, n_classes=10)
    train, test = stratified(labels)
    return Dataset(
        shape=(1, side, side),
        dtype="uint8",
        n_classes=10,
        train=held(images[train], labels[train], limit),
        test=held(images[test], labels[test], limit),
    )
