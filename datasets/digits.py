"""Small digits that come with psframe (:func:`digits`)."""

from pathlib import Path

from psframe.config.registry import PositiveInt
from psframe.datasets import files
from psframe.datasets.base import Dataset
from psframe.datasets.digit_csv import digit_csv

OWN = Path(__file__).with_name("digits.csv.gz")


def digits(*, path: str | None = None, limit: PositiveInt | None = None) -> Dataset:
    """Return 1,797 digits, every fifth of each class for testing: uint8 (1, 8, 8), values 0 to 16.

    They are the test set of "Optical Recognition of Handwritten Digits" (Alpaydin and Kaynak 1998, UCI Machine Learning
    Repository, https://doi.org/10.24432/C50P49, CC BY 4.0); see digits.txt beside this file.

    Parameters
    ----------
    path : str, optional
        Path of a file like digits.csv.gz, by default the one beside this module.
    limit : int, optional
        Maximum number of samples of each split.

    Raises
    ------
    UserError
        The file is missing or damaged.
    """
    return digit_csv(files.regular(path or str(OWN), "digits.csv.gz"), 8, limit)
