"""Small digits without a download (:func:`digits`)."""

from psframe.config.registry import PositiveInt
from psframe.datasets import files
from psframe.datasets.base import Dataset
from psframe.datasets.digit_csv import digit_csv


def digits(*, path: str | None = None, limit: PositiveInt | None = None) -> Dataset:
    """Return the 1,797 digits of scikit-learn, every fifth of each class for testing: uint8 (1, 8, 8), values 0 to 16.

    The wheel of scikit-learn contains them as sklearn/datasets/data/digits.csv.gz; its code is not imported.

    Parameters
    ----------
    path : str, optional
        Path of this file, by default in the installed package.
    limit : int, optional
        Maximum number of samples of each split.

    Raises
    ------
    UserError
        The file is missing or damaged.
    """
    path = path or files.carried("sklearn", "scikit-learn", "datasets/data/digits.csv.gz")
    return digit_csv(files.regular(path, "digits.csv.gz"), 8, limit)
