"""Metrics of the predicted probabilities: their log loss (:class:`LogLoss`) and calibration (:class:`ECE`)."""

from typing import Annotated

import msgspec
import numpy as np

from psframe.nn.metrics.base import Metric, exponentials, predicted

Bins = Annotated[int, msgspec.Meta(ge=1, le=10_000)]


class LogLoss(Metric):
    """Mean of -log(probability of the sample's class), in float64 and without a bound on a sample's loss."""

    def sums(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        wide = logits.astype(np.float64)
        below_top = wide.max(axis=1) - np.take_along_axis(wide, labels[:, None], axis=1)[:, 0]
        return (np.log(exponentials(logits).sum(axis=1)) + below_top).sum()

    def finish(self, total: np.ndarray, n_samples: int) -> float:
        return float(total / n_samples)


class ECE(Metric):
    """Expected calibration error (Guo et al. 2017, arXiv:1706.04599).

    Samples are put into ``bins`` of equal width by their confidence, the largest probability; a bin has its upper
    end. The error is the mean over the samples of the difference of accuracy and mean confidence in their bin.
    """

    def __init__(self, n_classes: int, *, bins: Bins = 15):
        super().__init__(n_classes)
        self.bins = bins
        self.ends = np.arange(1, bins) / bins  # of all bins but the last

    def sums(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the number of hits and the sum of confidences of each bin, (2, bins)."""
        confidence = 1 / exponentials(logits).sum(axis=1)
        of_bin = np.searchsorted(self.ends, confidence)
        is_hit = predicted(logits) == labels
        return np.stack([np.bincount(of_bin, weights, self.bins) for weights in (is_hit, confidence)])

    def finish(self, total: np.ndarray, n_samples: int) -> float:
        hits, confidences = total
        return float(np.abs(hits - confidences).sum() / n_samples)
