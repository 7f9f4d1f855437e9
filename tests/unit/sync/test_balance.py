"""Shares by speed: whole, within their limits, in proportion, and left alone where little is to be won."""

from itertools import product
from statistics import median
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe.sync.balance import GAIN, LONGEST, MESSAGE, WINDOW, Balance, better, proportional
from psframe.sync.sampler import MOST, BalancedSampler, Sampler
from tests.helpers.seeds import seeded

SPEEDS = st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=68)


@given(SPEEDS, st.integers(1, 64))
def test_shares_are_whole_and_within_their_limits(speeds, batch):
    shares = proportional(batch * len(speeds), speeds, MOST * batch)
    assert sum(shares) == batch * len(speeds)
    assert all(1 <= share <= MOST * batch for share in shares)


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=4), st.integers(1, 4))
def test_no_other_shares_end_earlier(speeds, batch):
    """Against all others."""
    total, most = batch * len(speeds), MOST * batch
    every = [s for s in product(range(1, most + 1), repeat=len(speeds)) if sum(s) == total]
    ends = [max(n / speed for n, speed in zip(shares, speeds, strict=True)) for shares in every]
    shares = proportional(total, speeds, most)
    assert tuple(shares) in every
    assert max(n / speed for n, speed in zip(shares, speeds, strict=True)) == min(ends)


@given(SPEEDS, st.integers(1, 64), st.data())
def test_new_shares_are_worth_it(speeds, batch, data):
    old = proportional(batch * len(speeds), data.draw(st.permutations(speeds)), MOST * batch)
    new = better(old, speeds, MOST * batch)
    before, after = (max(n / speed for n, speed in zip(of, speeds, strict=True)) for of in (old, new))
    assert new == old or after < (1 - GAIN) * before


@given(st.integers(1, 9), st.integers(1, 16), st.integers(1, 300), st.data())
def test_every_sample_has_one_worker_whatever_the_shares(n_workers, batch, n_samples, data):
    sampler = BalancedSampler(n_samples, n_workers, batch, 0)
    speeds = data.draw(st.lists(st.floats(0.1, 10), min_size=n_workers, max_size=n_workers))
    sampler.divide(proportional(sampler.samples_per_step, speeds, MOST * batch))
    seen = np.zeros(n_samples, int)
    for step in range(sampler.n_steps):
        for worker in range(n_workers):
            share = sampler.share(step, worker)
            assert share.stop - share.start <= min(sampler.max_batch, sampler.sizes[worker])
            seen[share] += 1
        assert sum(sampler.size_of(step, worker) for worker in range(n_workers)) == sampler.samples_in(step)
    assert (seen == 1).all()


def test_shares_are_even_to_begin_with():
    even, balanced = Sampler(100, 3, 8, 0), BalancedSampler(100, 3, 8, 0)
    assert [balanced.share(0, worker) for worker in range(3)] == [even.share(0, worker) for worker in range(3)]


def simulated(seconds_a_sample, overhead=0.0, n_steps=400, batch=16, noise=0.0):
    """Return the sampler, and the seconds of every step, of workers whose time passes on a clock of their own."""
    draw = seeded("noise of steps")
    n_workers = len(seconds_a_sample)
    sampler = BalancedSampler(10**6, n_workers, batch, 0)
    told = [0.0] * n_workers
    cluster = SimpleNamespace(
        allgather_in_time=lambda _: [MESSAGE.pack(-1, 0.0), *(MESSAGE.pack(w, s) for w, s in enumerate(told))]
    )
    balance, noted, steps = Balance(sampler, cluster, 0), [[] for _ in told], []
    for _ in range(n_steps):
        took = [
            (overhead + own * n) * (1 + noise * draw.random())
            for own, n in zip(seconds_a_sample, sampler.sizes, strict=True)
        ]
        for worker, seconds in enumerate(took):
            noted[worker].append(seconds / sampler.sizes[worker])
            told[worker] = median(noted[worker][-WINDOW:])
        steps.append(max(took))
        balance.note(sampler.sizes[0], took[0])
        balance.after_step()
        if not balance.n_steps:
            noted = [[] for _ in told]
    return sampler, steps


@pytest.mark.parametrize("overhead", [0, 2, 16])
@pytest.mark.parametrize("slow", [1.1, 2, 3, 5])
def test_slow_worker_takes_less_until_all_take_as_long(slow, overhead):
    """Within 62 steps, an epoch of 4,000 samples: as short as whole samples allow, up to what is not worth it."""
    per_sample = [1, 1, 1, slow]
    sampler, steps = simulated(per_sample, overhead)
    possible = overhead + 64 / sum(1 / own for own in per_sample)
    assert steps[62] < (possible + max(per_sample)) / (1 - GAIN)
    assert steps[-1] <= steps[62]
    assert sum(sampler.sizes) == 64


def test_equal_workers_keep_equal_shares_though_steps_differ():
    sampler, _ = simulated([1, 1, 1, 1], noise=0.2)
    assert sampler.sizes == sampler.even


def test_measurements_are_rare_where_shares_are_right():
    balance = Balance(BalancedSampler(100, 1, 8, 0), SimpleNamespace(allgather_in_time=lambda own: [own]), 0)
    dues = []
    for _ in range(LONGEST * 4):
        balance.note(8, 1.0)
        balance.after_step()
        dues.append(balance.due)
    assert dues[-1] == LONGEST
    assert len(balance.seconds) < LONGEST + 1


def test_worker_without_a_measurement_changes_nothing():
    cluster = SimpleNamespace(allgather_in_time=lambda own: [own, MESSAGE.pack(1, 0.0)])
    sampler = BalancedSampler(100, 2, 8, 0)
    balance = Balance(sampler, cluster, 0)
    for _ in range(WINDOW):
        balance.note(8, 1.0)
        balance.after_step()
    assert sampler.sizes == [8, 8]
