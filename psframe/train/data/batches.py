"""Batches of a rank: samples turned into a network's input (:class:`Batches`)."""

from typing import TYPE_CHECKING, Union

import numpy as np

from psframe import compiled
from psframe.memory.allocator import Allocator

if TYPE_CHECKING:
    from psframe.record.inputs import Inputs
    from psframe.train.data.dataset import Facts


class Batches:
    """Network inputs from sample numbers, in buffers allocated once.

    Parameters
    ----------
    facts : Facts or Inputs
    arrays : dict of ndarray
        Arrays of :class:`psframe.train.data.dataset.LoadedData`.
    max_batch, seed : int
    n_kept : int
        Number of inputs valid at the same time; 0 if only labels are needed.
    """

    def __init__(
        self,
        facts: Union["Facts", "Inputs"],
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
        """Return input (n, H, W, C) float32 and labels (n,) int64; a call that needs their rows overwrites them.

        Parameters
        ----------
        split : str
            ``train``: random crop and random mirroring, by (seed, epoch, sample); ``test``: centre crop.
        samples : ndarray of int64, shape (n,)
        first : int
            Row of the first sample in the input buffer; labels begin at row 0.
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
