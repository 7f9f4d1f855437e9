"""Samples of each worker in each step (:class:`Sampler`), known to every rank without communication."""

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from psframe import compiled
from psframe.collectives.base import cut

MOST = 2  # times the batch size, the largest share of a balanced step: so much memory it takes


@dataclass
class Sampler:
    """Assignment of samples: a permutation that depends only on seed and epoch, cut by step and worker.

    Every sample is used once per epoch; the last step divides the rest evenly. If an epoch was cut short, the rest of
    its permutation is cut into steps for the current number of workers.

    Attributes
    ----------
    n_samples, n_workers, batch_size, seed : int
    cursor : int
        Samples of the epoch already done; steps begin behind them.
    epoch : int
        Epochs already done, by any number of workers.
    """

    n_samples: int
    n_workers: int
    batch_size: int
    seed: int
    cursor: int = 0
    epoch: int = 0

    @property
    def n_left(self) -> int:
        """Samples of the epoch not yet done."""
        return self.n_samples - self.cursor

    @property
    def n_steps(self) -> int:
        """Steps to the end of the epoch."""
        return self.steps_to(self.n_samples)

    def steps_to(self, done: int) -> int:
        """Return the number of steps until ``done`` samples of the epoch are done."""
        return -(-(done - self.cursor) // self.samples_per_step)

    @property
    def steps_an_epoch(self) -> int:
        """Steps of a complete epoch."""
        return -(-self.n_samples // self.samples_per_step)

    @property
    def samples_per_step(self) -> int:
        """Samples of a full step over all workers, from the batch size."""
        return self.n_workers * self.batch_size

    @property
    def global_batch(self) -> int:
        """Samples of a full step over all workers, at most those of the data set."""
        return min(self.samples_per_step, self.n_samples)

    @property
    def max_batch(self) -> int:
        """Most samples of a worker in a step."""
        return min(self.batch_size, -(-self.n_samples // self.n_workers))

    def permutation(self, epoch: int) -> np.ndarray:
        """Return the order of the samples in an epoch, int64 (n_samples,), read-only."""
        return _permutation(self.seed, epoch, self.n_samples)

    def samples_in(self, step: int) -> int:
        """Return the number of samples of a step over all workers."""
        return min(self.samples_per_step, self.n_left - step * self.samples_per_step)

    def share(self, step: int, worker: int) -> slice:
        """Return a worker's slice of the permutation in a step; it may be empty in the last step."""
        begin, share = self.cursor + step * self.samples_per_step, self.cut(self.samples_in(step), worker)
        return slice(begin + share.start, begin + share.stop)

    def cut(self, n: int, worker: int) -> slice:
        """Return a worker's slice of a step's ``n`` samples."""
        return cut(n, self.n_workers, worker)

    def samples(self, order: np.ndarray, step: int, worker: int) -> np.ndarray:
        """Return those of a permutation that a worker computes in a step."""
        return order[self.share(step, worker)]

    def done_after(self, n_steps: int) -> int:
        """Return the number of samples of the epoch done after ``n_steps`` more steps."""
        return min(self.cursor + n_steps * self.samples_per_step, self.n_samples)

    def size_of(self, step: int, worker: int) -> int:
        """Return the number of samples of a worker in a step."""
        share = self.share(step, worker)
        return share.stop - share.start


@dataclass
class BalancedSampler(Sampler):
    """Sampler whose shares of a step may differ from worker to worker.

    Attributes
    ----------
    sizes : list of int
        Samples of each worker in a full step; those of an even division to begin with.
    """

    sizes: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.sizes = self.even

    @property
    def even(self) -> list[int]:
        """Equal shares of a full step."""
        return [self.batch_size] * self.n_workers

    @property
    def max_batch(self) -> int:
        return min(MOST * self.batch_size, self.n_samples)

    @property
    def most(self) -> int:
        """Largest size of a share."""
        return self.max_batch

    @property
    def shares(self) -> list[int]:
        """Samples of each worker in a full step."""
        return self.sizes

    def divide(self, sizes: list[int]) -> bool:
        """Give the workers shares of other sizes from the next step on; return True if any has changed."""
        changed, self.sizes = sizes != self.sizes, sizes
        return changed

    def cut(self, n: int, worker: int) -> slice:
        before, total = sum(self.sizes[:worker]), self.samples_per_step
        return slice(n * before // total, n * (before + self.sizes[worker]) // total)


@lru_cache(maxsize=1)  # for virtual ranks, of which a thousand would each have their own
def _permutation(seed: int, epoch: int, n: int) -> np.ndarray:
    """Return the order of ``n`` samples in an epoch, read-only."""
    keys = np.empty(n, np.uint64)
    compiled.random.keys(seed, epoch, keys)
    order = np.argsort(keys, kind="stable")
    order.flags.writeable = False
    return order
