"""Share of samples whose class is among the k most likely (:class:`TopK`)."""

import numpy as np

from psframe.config.registry import PositiveInt
from psframe.errors import UserError
from psframe.nn.metrics.base import Metric


class TopK(Metric):
    """Share of samples whose class has one of the ``k`` largest logits.

    Of equal logits that of the higher class counts as larger, as in scikit-learn's ``top_k_accuracy_score``;
    ``accuracy`` takes the lower class. A NaN counts as larger than all others, and is never a hit.
    """

    def __init__(self, n_classes: int, *, k: PositiveInt = 5):
        super().__init__(n_classes)
        if k > n_classes:
            raise UserError(
                f"metric top_k must have a k of at most the {n_classes} classes of the data, got {k}; give "
                f"{{name: top_k, k: {max(1, n_classes - 1)}}}, or less"
            )
        self.k, self.label = k, f"top_{k}"

    def sums(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        own = np.take_along_axis(logits, labels[:, None], axis=1)
        is_higher_class = np.arange(self.n_classes) > labels[:, None]
        ahead = (~(logits <= own) | ((logits == own) & is_higher_class)).sum(axis=1)
        return np.array((ahead < self.k).sum(), np.int64)

    def finish(self, total: np.ndarray, n_samples: int) -> float:
        return float(total / n_samples)
