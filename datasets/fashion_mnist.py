"""Fashion-MNIST from its Debian package (:func:`fashion_mnist`)."""

import os

from psframe.config.registry import PositiveInt
from psframe.datasets.base import Dataset
from psframe.datasets.idx import idx
from psframe.errors import UserError

DEBIAN = "/usr/share/datasets/fashion-mnist"


def fashion_mnist(*, path: str = DEBIAN, limit: PositiveInt | None = None) -> Dataset:
    """Return Fashion-MNIST (Xiao, Rasul, Vollgraf 2017), 60,000 training and 10,000 test images: uint8 (1, 28, 28).

    Parameters
    ----------
    path : str
        Folder with its four IDX files, .gz or plain.
    limit : int, optional
        Maximum number of samples of each split.

    Raises
    ------
    UserError
        The folder is missing, or a file in it is missing or damaged.
    """
    if path == DEBIAN and not os.path.isdir(path):
        raise UserError(
            f"fashion_mnist must be installed, got no folder {path}; apt install dataset-fashion-mnist (Debian), or "
            "give a folder with its four IDX files as dataset.path"
        )
    return idx(path=path, limit=limit)
