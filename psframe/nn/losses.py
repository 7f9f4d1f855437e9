"""Loss of a network (:func:`softmax_cross_entropy`)."""

import numpy as np

from psframe.errors import UserError
from psframe.nn.jit import jit


def softmax_cross_entropy(logits: np.ndarray, labels: np.ndarray, dlogits: np.ndarray) -> tuple[float, int]:
    """Return the loss summed over the samples, and the number of samples whose first largest logit is the label's.

    Parameters
    ----------
    logits : ndarray, shape (n, n_classes)
    labels : ndarray of int64, shape (n,)
    dlogits : ndarray, shape (n, n_classes) or (0, n_classes)
        Receives the gradient of the **sum**, softmax - one-hot; without rows, as in evaluation, it is not computed.

    Raises
    ------
    UserError
        A label is outside [0, n_classes).
    """
    loss, n_correct, wrong = _softmax_cross_entropy(logits, labels, dlogits)
    if wrong >= 0:
        raise UserError(
            f"labels must lie in [0, {logits.shape[1]}), got {labels[wrong]}; mend the dataset or its n_classes"
        )
    return loss, n_correct


@jit
def _softmax_cross_entropy(logits, labels, dlogits):
    """Return the loss, the number of correct samples, and the first sample with an invalid label, or -1."""
    n, n_classes = logits.shape
    loss, n_correct = 0.0, 0
    for i in range(n):
        if not 0 <= labels[i] < n_classes:
            return loss, n_correct, i
        z, best = logits[i], 0
        for k in range(1, n_classes):
            if z[k] > z[best]:
                best = k
        # float64, and exponents of at most 0: neither the sum nor an exponential can overflow
        top, total = np.float64(z[best]), 0.0
        for k in range(n_classes):
            power = np.exp(z[k] - top)
            total += power
            if len(dlogits):
                dlogits[i, k] = power
        loss += np.log(total) - (z[labels[i]] - top)
        n_correct += best == labels[i]
        if len(dlogits):
            for k in range(n_classes):
                dlogits[i, k] /= total
            dlogits[i, labels[i]] -= 1
    return loss, n_correct, -1
