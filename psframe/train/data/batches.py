"""Batches of a rank: samples turned into a network's input (:class:`Batches`)."""

import numpy as np

from psframe import compiled
from psframe.memory.allocator import Allocator
from psframe.train.data.dataset import Facts


class Batches:
    """Turns sample numbers into a network's input, in buffers that are made once.

    Parameters
    ----------
    facts : Facts
    arrays : dict of ndarray
        What :func:`hold` returns.
    max_batch, seed : int
    n_kept : int
        Batches whose input is valid at the same time; 0 where nobody asks for any.
    """

    def __init__(
        self,
        facts: Facts,
        arrays: dict[str, np.ndarray],
        max_batch: int,
        seed: int,
        allocator: Allocator,
        n_kept: int = 1,
    ):
        channels, *rest = facts.input_shape
        height, width = [1, *rest][-2:]
        self.x = allocator.zeros((n_kept * max_batch, height, width, channels), np.float32, "activations")
        self.labels = allocator.zeros(max_batch, np.int64, "activations")
        self.place = allocator.zeros((max_batch, 3), np.int64, "activations")
        self.drawn = allocator.zeros((max_batch, 3), np.float32, "activations")
        self.arrays, self.seed, self.flip = arrays, seed, facts.flip
        stored = [1, *facts.shape[1:]][-2:]
        self.spare = np.array([stored[0] - height, stored[1] - width])
        mean, std = arrays["moments"]
        self.scale, self.shift = (1 / std).astype(np.float32), (-mean / std).astype(np.float32)

    def load(self, split: str, samples: np.ndarray, epoch: int = 0, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return input (n, H, W, C) float32 and labels (n,) int64; valid until the next call of as many at ``first``.

        Parameters
        ----------
        split : str
            ``train``: cropped at a random place and mirrored at random, by (seed, epoch, sample); ``test``: centred.
        samples : ndarray of int64, shape (n,)
        """
        n = len(samples)
        x, place = self.x[first : first + n], self.place[:n]
        if split == "train" and (self.flip or self.spare.any()):
            drawn = self.drawn[:n]
            compiled.random.uniform(self.seed, compiled.random.AUGMENT, epoch, samples, drawn)
            place[:, :2] = drawn[:, :2] * (self.spare + 1)
            place[:, 2] = (drawn[:, 2] < 0.5) & self.flip
        else:
            place[:, :2] = self.spare // 2
            place[:, 2] = 0
        compiled.batch.gather(self.arrays[f"{split}_images"], samples, place, self.scale, self.shift, x)
        return x, self.labels_of(split, samples)

    def labels_of(self, split: str, samples: np.ndarray) -> np.ndarray:
        """Return labels (n,) int64; valid until the next call."""
        labels = self.labels[: len(samples)]
        np.take(self.arrays[f"{split}_labels"], samples, out=labels, mode="clip")  # other modes make a copy
        return labels
