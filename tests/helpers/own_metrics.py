"""Metrics of a user's own: ones that work, and some with a mistake each."""

import sys

import numpy as np


class MeanMargin:
    """Mean of how far the label's logit lies above the next one, without a base class."""

    label = "margin"

    def __init__(self, n_classes, *, scale: float = 1.0):
        self.scale = scale

    def sums(self, logits, labels):
        own = np.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
        others = logits.copy()
        others[np.arange(len(labels)), labels] = -np.inf
        return self.scale * (own - others.max(axis=1)).astype(np.float64).sum()

    def finish(self, total, n_samples):
        return total / n_samples


class Needy(MeanMargin):
    def __init__(self, n_classes, *, depth: int):
        super().__init__(n_classes)


class Largest:
    """Largest logit: merged by its own rule."""

    def __init__(self, n_classes):
        pass

    def sums(self, logits, labels):
        return logits.max()

    def merge(self, a, b):
        return np.maximum(a, b)

    def finish(self, total, n_samples):
        return [total, [n_samples]]


class Late(MeanMargin):
    """Fails on a batch with samples of class 1, behind the three batches of its trial: in training only."""

    n_batches = 0

    def sums(self, logits, labels):
        self.n_batches += 1
        if self.n_batches > 3 and 1 in labels:
            raise ArithmeticError("class 1 is more than I can take")
        return super().sums(logits, labels)


class Reshaped(MeanMargin):
    def sums(self, logits, labels):
        return labels.astype(np.int64)


class Wordy(MeanMargin):
    def finish(self, total, n_samples):
        return {"margin": total}


class Textual(MeanMargin):
    def sums(self, logits, labels):
        return np.array(["a", "b"])


class Writing(MeanMargin):
    def sums(self, logits, labels):
        logits -= logits.max()
        return 0.0


class Leaving(MeanMargin):
    def sums(self, logits, labels):
        sys.exit(3)


class Unmakeable(MeanMargin):
    def __init__(self, n_classes):
        raise ZeroDivisionError("no classes")


class LateFinish(MeanMargin):
    """Fails when it has the sums of more than ten samples."""

    def finish(self, total, n_samples):
        if n_samples > 10:
            raise OverflowError("more than ten")
        return 0.0


class Endless(MeanMargin):
    def finish(self, total, n_samples):
        return [1 / 3] * 2_000_000


def nothing(n_classes):
    """A metric that is none."""
