"""Batches that go to whoever asks for one, so that a slow worker computes fewer of them and keeps nobody waiting."""

from collections.abc import Iterator

from psframe.sync.sampler import Sampler
from psframe.sync.stores.base import Store


class Draw:
    """The shares of an epoch's steps, numbered, in the order in which they are given out.

    Parameters
    ----------
    dealer : Store
        Which gives out the numbers.
    sampler : Sampler
    """

    def __init__(self, dealer: Store, sampler: Sampler):
        self.dealer, self.sampler = dealer, sampler
        self.n_drawn: int | None = None  # when :meth:`stop` was called

    def begin(self) -> None:
        """Begin an epoch, or what is left of one."""
        self.n_drawn = None

    def turns(self, n_steps: int) -> Iterator[tuple[int, int, int]]:
        """Yield steps of an epoch, workers' shares, and how many samples these have, until all are given out."""
        while (number := self.dealer.draw()) < n_steps * self.sampler.n_workers:
            step, worker = divmod(number, self.sampler.n_workers)
            if n_own := self.sampler.size_of(step, worker):  # the last step may have fewer samples than workers
                yield step, worker, n_own

    def stop(self) -> None:
        """Give out no more until the next epoch begins, and remember how many there were. Rank 0."""
        if self.n_drawn is None:
            self.n_drawn = self.dealer.close_draw()

    def done(self) -> int:
        """Return how many samples of the epoch were given out, after :meth:`stop`. Rank 0."""
        if self.n_drawn is None or self.n_drawn >= self.sampler.n_steps * self.sampler.n_workers:
            return self.sampler.n_samples
        return self.sampler.share(*divmod(self.n_drawn, self.sampler.n_workers)).start
