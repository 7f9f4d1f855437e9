"""Mix-up of training samples (:class:`Mixup`; Zhang et al. 2018, "mixup: Beyond empirical risk minimization")."""

import numpy as np

from psframe import compiled
from psframe.memory.allocator import Allocator


class Mixup:
    """Partners of samples, and shares of the mixtures: ``share x_i + (1 - share) x_j``, and so for the loss.

    The partner j is any training sample, as it is itself augmented in this epoch; the share is of Beta(alpha, alpha).
    Both are drawn for every sample i by (seed, epoch, i), not once a batch, which ranks and micro-batches would cut.

    Parameters
    ----------
    alpha : float
        Above 0.
    seed, n_samples, max_batch : int
    """

    def __init__(self, alpha: float, seed: int, n_samples: int, max_batch: int, allocator: Allocator):
        self.alpha, self.seed, self.n_samples = alpha, seed, n_samples
        self.index = allocator.zeros(2 * max_batch, np.int64, "activations", "input")
        self.shares = allocator.zeros(max_batch, np.float32, "activations", "input")
        self.drawn = allocator.zeros((max_batch, 4), np.float32, "activations", "input")

    def draw(self, samples: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return sample numbers, int64 (2 n,), the given ones and their partners, and shares, float32 (n,).

        Both are valid until the next call.
        """
        n = len(samples)
        index, shares, drawn = self.index[: 2 * n], self.shares[:n], self.drawn[:n]
        index[:n] = samples
        compiled.random.uniform(self.seed, compiled.random.MIXUP, epoch, samples, drawn)
        compiled.batch.mix(drawn, self.n_samples, self.alpha, index[n:], shares)
        return index, shares
