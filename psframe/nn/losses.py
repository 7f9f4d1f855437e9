"""What a network is trained to lower."""

import numpy as np

from psframe.errors import UserError
from psframe.nn.jit import jit


def softmax_cross_entropy(logits: np.ndarray, labels: np.ndarray, dlogits: np.ndarray) -> tuple[float, int]:
    """Return the loss summed over the samples, and how many have their first largest logit at the label.

    Parameters
    ----------
    logits : ndarray, shape (n, n_classes)
    labels : ndarray of int64, shape (n,)
    dlogits : ndarray, shape (n, n_classes) or (0, n_classes)
        Gets the gradient of the **sum**, softmax - one-hot; without rows nothing is written, as in evaluation.

    Raises
    ------
    UserError
        Where a label is no class.
    """
    n, n_classes = logits.shape
    if n == 0:
        return 0.0, 0
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= n_classes:
        raise UserError(
            f"labels must lie in [0, {n_classes}), got {low if low < 0 else high}; mend the dataset or its n_classes"
        )
    return _softmax_cross_entropy(logits, labels, dlogits)


@jit
def _softmax_cross_entropy(logits, labels, dlogits):
    n, n_classes = logits.shape
    loss, n_correct = 0.0, 0
    for i in range(n):
        z, best = logits[i], 0
        for k in range(1, n_classes):
            if z[k] > z[best]:
                best = k
        # float64 throughout, and exponents never above 0: neither the sum nor an exponential can overflow
        top, total = np.float64(z[best]), 0.0
        for k in range(n_classes):
            total += np.exp(z[k] - top)
        loss += np.log(total) - (z[labels[i]] - top)
        n_correct += best == labels[i]
        if len(dlogits):
            for k in range(n_classes):
                dlogits[i, k] = np.exp(z[k] - top) / total - (k == labels[i])
    return loss, n_correct
