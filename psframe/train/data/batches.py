"""Batches of a rank: samples turned into a network's input (:class:`Batches`)."""

from typing import TYPE_CHECKING, Union

import numpy as np

from psframe import compiled
from psframe.memory.allocator import Allocator
from psframe.nn.losses import Labels, Targets
from psframe.record.flight import DATA, in_phase
from psframe.train.data import augment
from psframe.train.data.augment import N_DRAWN, Recipe
from psframe.train.data.mixup import Mixup

if TYPE_CHECKING:
    from psframe.record.inputs import Inputs
    from psframe.train.data.dataset import Facts

ALONE = np.empty(0, np.float32)  # shares of samples that are not mixed


class Batches:
    """Network inputs from sample numbers, in buffers allocated once.

    Parameters
    ----------
    facts : Facts or Inputs
    arrays : dict of ndarray
        Arrays of :class:`psframe.train.data.dataset.LoadedData`.
    max_batch : int
    recipe : Recipe
        What is made of training samples; test samples pass as they are, cropped to their centre.
    n_kept : int
        Number of inputs valid at the same time; 0 if only labels are needed.
    """

    def __init__(
        self,
        facts: Union["Facts", "Inputs"],
        arrays: dict[str, np.ndarray],
        max_batch: int,
        recipe: Recipe,
        allocator: Allocator,
        n_kept: int = 1,
    ):
        channels, (sides, spare) = facts.shape[0], augment.frame(facts)
        self.arrays, self.recipe, alpha = arrays, recipe, recipe.augment.mixup
        n_rows = 2 * max_batch if alpha else max_batch
        self.x = allocator.zeros((n_kept * max_batch, *sides.tolist(), channels), np.float32, "activations", "input")
        self.labels = allocator.zeros(n_rows, np.int64, "activations", "input")
        self.plan = allocator.zeros((n_rows, compiled.batch.N_COLUMNS), np.int64, "activations", "input")
        self.drawn = allocator.zeros((n_rows, N_DRAWN), np.float32, "activations", "input")
        self.mixup, self.partner = None, np.empty(1, np.float32)
        if alpha:
            n_train = len(arrays["train_labels"])
            self.mixup = Mixup(alpha, recipe.seed, n_train, max_batch, allocator)
            self.partner = allocator.zeros(int(sides.prod()) * channels, np.float32, "activations", "input")
        self.augmentations = augment.chosen(recipe.augment, facts)
        self.centred = np.zeros(compiled.batch.N_COLUMNS, np.int64)
        self.centred[compiled.batch.WINDOW] = spare // 2
        mean, std = arrays["moments"]
        self.scale, self.shift = (1 / std).astype(np.float32), (-mean / std).astype(np.float32)

    @in_phase(DATA)
    def load(self, split: str, samples: np.ndarray, epoch: int = 0, first: int = 0) -> np.ndarray:
        """Return the input (n, H, W, C) float32; a call that needs its rows overwrites them.

        Parameters
        ----------
        split : str
            ``train``: augmented, by (seed, epoch, sample); ``test``: centre crop.
        samples : ndarray of int64, shape (n,)
        first : int
            Row of the first sample in the input buffer.
        """
        trains = split == "train"
        index, shares = self._mixed(samples, epoch) if trains else (samples, ALONE)
        plan, x = self.plan[: len(index)], self.x[first : first + len(samples)]
        plan[:] = self.centred
        if trains and self.augmentations:
            drawn = self.drawn[: len(index)]
            compiled.random.uniform(self.recipe.seed, compiled.random.AUGMENT, epoch, index, drawn)
            for augmentation in self.augmentations:
                augmentation.fill(drawn[:, augmentation.uses], plan)
        images = self.arrays[f"{split}_images"]
        compiled.batch.gather(images, index, plan, shares, self.scale, self.shift, self.partner, x)
        return x

    def labels_of(self, split: str, samples: np.ndarray) -> np.ndarray:
        """Return labels (n,) int64; valid until the next call."""
        labels = self.labels[: len(samples)]
        np.take(self.arrays[f"{split}_labels"], samples, out=labels, mode="clip")  # other modes make a copy
        return labels

    def targets_of(self, samples: np.ndarray, epoch: int) -> Labels:
        """Return what training samples are labelled with in an epoch; valid until the next call.

        Labels (n,) int64, or targets where the run mixes samples or smooths labels.
        """
        index, shares = self._mixed(samples, epoch)
        labels, n = self.labels_of("train", index), len(samples)
        if not self.mixup and not self.recipe.smoothing:
            return labels
        return Targets(labels[:n], labels[n:], shares, self.recipe.smoothing)

    def _mixed(self, samples: np.ndarray, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of samples, and of those that are mixed with them if any, and the shares of the former."""
        return self.mixup.draw(samples, epoch) if self.mixup else (samples, ALONE)
