"""Batches that go to whoever asks for one, so that a slow worker computes fewer of them and keeps nobody waiting."""

from collections.abc import Iterator

from psframe.sampling import Sampler
from psframe.stores.base import Store


def drawn(store: Store, sampler: Sampler, n_steps: int) -> Iterator[tuple[int, int, int]]:
    """Yield steps of an epoch, workers' shares of them, and how many samples these have, until all are given out."""
    while (number := store.draw()) < n_steps * sampler.n_workers:
        step, worker = divmod(number, sampler.n_workers)
        if n_own := sampler.size_of(step, worker):  # the last step may have fewer samples than workers
            yield step, worker, n_own
