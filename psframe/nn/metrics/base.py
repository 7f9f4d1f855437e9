"""Contract of a metric of the test set (:class:`Metric`): sums over samples, so that ranks can share the set."""

from typing import Any

import numpy as np


class Metric:
    """Quality of a network on a test set, of which each rank evaluates a share.

    A metric of a user's own may derive from this class, or be any class with :meth:`sums` and :meth:`finish`. It is
    made as ``metric(n_classes, **keys)``: keyword-only parameters are its keys in YAML.

    Parameters
    ----------
    n_classes : int

    Attributes
    ----------
    label : str
        Key of its value in a record; "" for its name in the config.
    """

    label = ""

    def __init__(self, n_classes: int):
        self.n_classes = n_classes

    def sums(self, logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return a sum over a batch of samples, which must be the same however a set is cut into batches.

        Parameters
        ----------
        logits : ndarray of float32, shape (n, n_classes)
            Outputs of the network, n >= 1; the arrays are read-only, and valid during the call only.
        labels : ndarray of int64, shape (n,)

        Returns
        -------
        ndarray of int64 or float64
            Of the same shape for every batch. Integers are summed exactly.
        """
        raise NotImplementedError

    def merge(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return the sum over the samples of both; ``a`` came first, and may be changed.

        Parameters
        ----------
        a, b : ndarray of int64 or float64
            Results of :meth:`sums` or :meth:`merge`, of the same shape.

        Returns
        -------
        ndarray of int64 or float64
        """
        return np.add(a, b, out=a if a.dtype == b.dtype else None)

    def finish(self, total: np.ndarray, n_samples: int) -> Any:
        """Return the value over ``n_samples`` samples: a number, or a nested list of numbers. Rank 0 only.

        Parameters
        ----------
        total : ndarray of int64 or float64
            Sum over all samples.
        n_samples : int

        Returns
        -------
        float, int, or ndarray or nested list of these
            Numbers that are not finite become None.
        """
        raise NotImplementedError


def predicted(logits: np.ndarray) -> np.ndarray:
    """Return the first class with the largest logit of each sample, int64 (n,), as ``accuracy`` counts it.

    A NaN is no larger than another logit, and no logit is larger than a NaN of the first class.
    """
    found: np.ndarray = logits.argmax(axis=1)  # of a NaN, if there is one
    wrong = np.flatnonzero(np.isnan(np.take_along_axis(logits, found[:, None], axis=1)) & (found[:, None] > 0))
    found[wrong] = np.where(np.isnan(logits[wrong]), -np.inf, logits[wrong]).argmax(axis=1)
    return found


def exponentials(logits: np.ndarray) -> np.ndarray:
    """Return exp(logit - largest logit of the sample) in float64, shape (n, n_classes): softmax times its divisor."""
    wide = logits.astype(np.float64)
    return np.exp(wide - wide.max(axis=1, keepdims=True))
