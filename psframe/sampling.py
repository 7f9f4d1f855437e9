"""Which samples a worker takes, and how they become a network's input, without talk between ranks."""

from dataclasses import dataclass

import numpy as np

from psframe import compiled
from psframe.collectives.base import cut
from psframe.data import Facts
from psframe.memory.allocator import Allocator


@dataclass
class Sampler:
    """Which samples a worker takes: a permutation that depends on seed and epoch alone, cut by step and worker.

    Every sample is seen once an epoch; the last step shares what is left evenly. Where an epoch was cut short, the
    rest of its permutation is cut into steps, for as many workers as there are then.

    Attributes
    ----------
    n_samples, n_workers, batch_size, seed : int
    cursor : int
        Samples of the epoch that are done: steps begin behind them.
    """

    n_samples: int
    n_workers: int
    batch_size: int
    seed: int
    cursor: int = 0

    @property
    def n_left(self) -> int:
        """Samples of the epoch that are not done."""
        return self.n_samples - self.cursor

    @property
    def n_steps(self) -> int:
        """Steps to the end of the epoch."""
        return self.steps_to(self.n_samples)

    def steps_to(self, done: int) -> int:
        """Return the steps until so many samples of the epoch are done."""
        return -(-(done - self.cursor) // self.whole)

    @property
    def steps_an_epoch(self) -> int:
        """Steps of a whole epoch."""
        return -(-self.n_samples // self.whole)

    @property
    def whole(self) -> int:
        """Samples of a step that is not cut short."""
        return self.n_workers * self.batch_size

    @property
    def global_batch(self) -> int:
        """Samples that all workers take together in a whole step."""
        return min(self.whole, self.n_samples)

    @property
    def max_batch(self) -> int:
        """Most samples that a worker takes in a step."""
        return min(self.batch_size, -(-self.n_samples // self.n_workers))

    def permutation(self, epoch: int) -> np.ndarray:
        """Return the order of the samples in an epoch, int64 (n_samples,)."""
        keys = np.empty(self.n_samples, np.uint64)
        compiled.random.keys(self.seed, epoch, keys)
        return np.argsort(keys, kind="stable")

    def samples_in(self, step: int) -> int:
        """Return how many samples all workers take together in a step."""
        return min(self.whole, self.n_left - step * self.whole)

    def share(self, step: int, worker: int) -> slice:
        """Return the part of the permutation that is a worker's in a step; it may be empty in the last one."""
        begin, own = self.cursor + step * self.whole, self.cut(self.samples_in(step), worker)
        return slice(begin + own.start, begin + own.stop)

    def cut(self, n: int, worker: int) -> slice:
        """Return which of a step's ``n`` samples are a worker's."""
        return cut(n, self.n_workers, worker)

    def done_after(self, n_steps: int) -> int:
        """Return how many samples of the epoch are done after so many steps."""
        return min(self.cursor + n_steps * self.whole, self.n_samples)

    def size_of(self, step: int, worker: int) -> int:
        """Return how many samples a worker takes in a step."""
        share = self.share(step, worker)
        return share.stop - share.start


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
