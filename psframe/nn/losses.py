"""Loss of a network (:func:`softmax_cross_entropy`), for labels or for soft targets (:class:`Targets`)."""

from typing import NamedTuple

import numpy as np

from psframe.errors import UserError
from psframe.nn.jit import jit


class Targets(NamedTuple):
    """Distributions over the classes that a network is to return for n samples.

    ``(1 - e) (share onehot(label) + (1 - share) onehot(other)) + e / n_classes``: two labels as in mix-up (Zhang et al.
    2018), and label smoothing by ``e`` (Szegedy et al. 2016, section 7).

    Attributes
    ----------
    labels : ndarray of int64, shape (n,)
        A sample's own label, whose prediction counts as correct.
    others : ndarray of int64, shape (n,) or (0,)
        Empty where each sample has one label.
    shares : ndarray of float32, shape (n,) or (0,)
        Of ``labels``, in [0, 1].
    smoothing : float
        e, in [0, 1).
    """

    labels: np.ndarray
    others: np.ndarray = np.empty(0, np.int64)
    shares: np.ndarray = np.empty(0, np.float32)
    smoothing: float = 0.0

    def dense(self, n_classes: int) -> np.ndarray:
        """Return the distributions, float32 (n, n_classes)."""
        rows, smooth = np.arange(len(self.labels)), 1 - self.smoothing
        targets = np.full((len(rows), n_classes), self.smoothing / n_classes)
        np.add.at(targets, (rows, self.labels), smooth * (self.shares if len(self.others) else 1))
        if len(self.others):
            np.add.at(targets, (rows, self.others), smooth * (1 - self.shares.astype(np.float64)))
        return targets.astype(np.float32)


Labels = np.ndarray | Targets  #: of n samples: int64 (n,), or targets


def softmax_cross_entropy(logits: np.ndarray, labels: Labels, dlogits: np.ndarray) -> tuple[float, int]:
    """Return the loss summed over the samples, and the number of samples whose first largest logit is the label's.

    Parameters
    ----------
    logits : ndarray, shape (n, n_classes)
    labels : ndarray of int64, shape (n,), or Targets
    dlogits : ndarray, shape (n, n_classes) or (0, n_classes)
        Receives the gradient of the **sum**, softmax - target; without rows, as in evaluation, it is not computed.

    Raises
    ------
    UserError
        A label is outside [0, n_classes).
    """
    targets = labels if isinstance(labels, Targets) else Targets(labels)
    loss, n_correct, wrong = _softmax_cross_entropy(logits, *targets, dlogits)
    if wrong >= 0:
        got = " and ".join(str(each[wrong]) for each in targets[:2] if len(each))
        raise UserError(f"labels must lie in [0, {logits.shape[1]}), got {got}; mend the dataset or its n_classes")
    return loss, n_correct


@jit
def _softmax_cross_entropy(logits, labels, others, shares, smoothing, dlogits):
    """Return the loss, the number of correct samples, and the first sample with an invalid label, or -1."""
    n, n_classes = logits.shape
    loss, n_correct, mixes, least = 0.0, 0, len(others) > 0, smoothing / n_classes
    own, other = 1 - smoothing, 0.0
    for i in range(n):
        if not 0 <= labels[i] < n_classes or (mixes and not 0 <= others[i] < n_classes):
            return loss, n_correct, i
        if mixes:
            own, other = (1 - smoothing) * shares[i], (1 - smoothing) * (1 - np.float64(shares[i]))
        z, best = logits[i], 0
        for k in range(1, n_classes):
            if z[k] > z[best]:
                best = k
        # float64, and exponents of at most 0: neither the sum nor an exponential can overflow
        top, total, below = np.float64(z[best]), 0.0, 0.0
        for k in range(n_classes):
            power = np.exp(z[k] - top)
            total += power
            below += z[k] - top
            if len(dlogits):
                dlogits[i, k] = power
        # not by a share of 0, which an infinite logit would make NaN
        expected = own * (z[labels[i]] - top) if own > 0 else 0.0
        if other > 0:
            expected += other * (z[others[i]] - top)
        if smoothing:
            expected += least * below
        loss += np.log(total) - expected
        n_correct += best == labels[i]
        if len(dlogits):
            for k in range(n_classes):
                dlogits[i, k] = dlogits[i, k] / total - least
            dlogits[i, labels[i]] -= own
            if mixes:
                dlogits[i, others[i]] -= other
    return loss, n_correct, -1
