"""Shares that ranks draw in order: how far an epoch came when all were asked to stop."""

from hypothesis import given
from hypothesis import strategies as st

from psframe.sync.sampler import Sampler
from psframe.sync.work_source import SampleQueue


class Tickets:
    """Tickets of one process, as a store has them for several."""

    def __init__(self):
        self.n_drawn = 0

    def next(self):
        self.n_drawn += 1
        return self.n_drawn - 1

    def close(self):
        return self.n_drawn


@given(st.integers(1, 200), st.integers(1, 5), st.integers(1, 9), st.integers(0, 300))
def test_queue_that_is_stopped_has_done_each_share_that_was_drawn_once(n_samples, n_workers, batch_size, n_shares):
    sampler = Sampler(n_samples, n_workers, batch_size, 0)
    queue, n_done = SampleQueue(Tickets(), sampler), 0
    queue.begin()
    turns = queue.turns(sampler.n_steps)
    for _ in range(n_shares):
        n_done += next(turns, (0, 0, 0))[2]
    queue.stop()
    assert queue.done() == n_done
