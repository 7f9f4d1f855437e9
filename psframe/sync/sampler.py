"""Samples of each worker in each step (:class:`Sampler`), known to every rank without communication."""

from dataclasses import dataclass

import numpy as np

from psframe import compiled
from psframe.collectives.base import cut


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
