"""Precision, recall and F1 of each class, and their means over the classes (:class:`PerClass`).

As scikit-learn defines them with ``zero_division=0``: a ratio whose divisor is 0 is 0.
"""

import numpy as np

from psframe.nn.metrics.base import Metric, predicted


class PerClass(Metric):
    """Ratio of counts of each class.

    ``average`` is "none" for a list with a number for each class; "macro" for the mean over the classes that are the
    label or the prediction of some sample; "weighted" for the mean over the samples' classes.
    """

    average = "none"

    def sums(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return by class the numbers of samples that are hits, that are predicted and that are labelled so, (3, n)."""
        classes = predicted(logits)
        counted = (labels[classes == labels], classes, labels)
        return np.stack([np.bincount(of, minlength=self.n_classes) for of in counted])

    def ratios(self, hits: np.ndarray, n_predicted: np.ndarray, n_labelled: np.ndarray) -> np.ndarray:
        """Return the ratio of each class, float64 (n_classes,)."""
        raise NotImplementedError

    def finish(self, total: np.ndarray, n_samples: int) -> float | list[float]:
        ratios, (_, n_predicted, n_labelled) = self.ratios(*total), total
        if self.average == "none":
            return ratios.tolist()
        weights = n_labelled if self.average == "weighted" else (n_predicted + n_labelled > 0)
        return float((ratios * weights).sum() / weights.sum())


def _divided(counts: np.ndarray, by: np.ndarray) -> np.ndarray:
    return np.divide(counts, by, out=np.zeros(len(counts)), where=by > 0)


class Precision(PerClass):
    """Share of hits among the samples that are predicted to be of a class, a list by class."""

    def ratios(self, hits: np.ndarray, n_predicted: np.ndarray, n_labelled: np.ndarray) -> np.ndarray:
        return _divided(hits, n_predicted)


class PrecisionMacro(Precision):
    """Mean of ``precision`` over the classes that occur."""

    average = "macro"


class PrecisionWeighted(Precision):
    """Mean of ``precision`` over the classes, each with the number of its samples as its weight."""

    average = "weighted"


class Recall(PerClass):
    """Share of hits among the samples of a class, a list by class."""

    def ratios(self, hits: np.ndarray, n_predicted: np.ndarray, n_labelled: np.ndarray) -> np.ndarray:
        return _divided(hits, n_labelled)


class RecallMacro(Recall):
    """Mean of ``recall`` over the classes that occur."""

    average = "macro"


class RecallWeighted(Recall):
    """Mean of ``recall`` over the classes, each with the number of its samples as its weight: the accuracy."""

    average = "weighted"


class F1(PerClass):
    """Harmonic mean of precision and recall, a list by class."""

    def ratios(self, hits: np.ndarray, n_predicted: np.ndarray, n_labelled: np.ndarray) -> np.ndarray:
        return _divided(2 * hits, n_predicted + n_labelled)


class F1Macro(F1):
    """Mean of ``f1`` over the classes that occur."""

    average = "macro"


class F1Weighted(F1):
    """Mean of ``f1`` over the classes, each with the number of its samples as its weight."""

    average = "weighted"
