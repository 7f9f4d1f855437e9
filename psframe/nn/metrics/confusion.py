"""Counts of samples by class and prediction (:class:`Confusion`)."""

import numpy as np

from psframe.errors import UserError
from psframe.nn.metrics.base import Metric, predicted

MAX_CLASSES = 1000  # of a matrix in a line of metrics.jsonl


class Confusion(Metric):
    """Number of samples by their class (rows) and the predicted one (columns), a list of lists."""

    def __init__(self, n_classes: int):
        super().__init__(n_classes)
        if n_classes > MAX_CLASSES:
            raise UserError(
                f"metric confusion must have at most {MAX_CLASSES:,} classes, got {n_classes:,}; give recall and "
                "precision, which have a number a class"
            )

    def sums(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        n = self.n_classes
        return np.bincount(labels * n + predicted(logits), minlength=n * n).reshape(n, n)

    def finish(self, total: np.ndarray, n_samples: int) -> list[list[int]]:
        return total.tolist()
