"""Loans of blocks: each block has one worker that computes it, and sizes are those asked for, or as near as can be."""

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from psframe.collectives.order import nodes, owned
from psframe.sync.balance import proportional
from psframe.train.compute.blocks import LendingSampler, Loan, arranged

BLOCKS = st.sampled_from([2, 4, 8, 16, 64])
SPEEDS = st.lists(st.floats(0.1, 10), min_size=16, max_size=16)


def made(n_blocks, n_workers, n_samples=203, n_global=64):
    return LendingSampler(n_samples, n_workers, n_global, 7, n_global=max(n_global, n_blocks), n_blocks=n_blocks)


def divided(n_blocks, n_workers, speeds):
    """Return a sampler whose workers have been asked for sizes by their speeds, and these sizes."""
    n_workers = min(n_workers, n_blocks)
    sampler = made(n_blocks, n_workers)
    sizes = proportional(n_blocks, speeds[:n_workers], sampler.most)
    sampler.divide(sizes)
    return sampler, sizes


def test_nobody_lends_at_first():
    sampler = made(16, 3)
    assert sampler.loans == []
    assert sampler.sizes == sampler.even == [4, 4, 8]
    assert [sampler.kept(worker) for worker in range(3)] == [slice(0, 4), slice(4, 8), slice(8, 16)]


@given(BLOCKS, st.integers(1, 9), SPEEDS)
def test_every_block_is_computed_once(n_blocks, n_workers, speeds):
    sampler, _ = divided(n_blocks, n_workers, speeds)
    spans = [span for worker in range(sampler.n_workers) for span in sampler.computed(worker)]
    assert sorted(block for span in spans for block in range(span.start, span.stop)) == list(range(n_blocks))
    counted = [sum(s.stop - s.start for s in sampler.computed(w)) for w in range(sampler.n_workers)]
    assert counted == sampler.sizes
    assert all(size >= 1 for size in sampler.sizes)


@given(BLOCKS, st.integers(1, 9), SPEEDS)
def test_sizes_are_those_asked_for_unless_rows_run_out(n_blocks, n_workers, speeds):
    sampler, sizes = divided(n_blocks, n_workers, speeds)
    put = [0] * sampler.n_workers
    for loan in sampler.loans:
        put[loan.helper] += len(nodes(loan.blocks))
    assert max(put) <= sampler.n_rows
    for worker, (size, asked, own) in enumerate(zip(sampler.sizes, sizes, sampler.even, strict=True)):
        assert min(asked, own) <= size <= max(asked, own), "it has less or more than it was to have, and had"
        if size < asked:
            assert put[worker] == sampler.n_rows, "a worker with rows left could have helped more"


@given(BLOCKS, st.integers(1, 9), SPEEDS)
def test_worker_lends_the_last_of_its_own_blocks(n_blocks, n_workers, speeds):
    sampler, _ = divided(n_blocks, n_workers, speeds)
    for worker in range(sampler.n_workers):
        own = sampler.owned(worker)
        lent = [loan.blocks for loan in sampler.loans if loan.owner == worker]
        ends = [own.start, sampler.kept(worker).stop, *(blocks.stop for blocks in lent)]
        assert [blocks.start for blocks in lent] == ends[1:-1]
        assert ends[-1] == own.stop
        assert all(before < after for before, after in pairwise(ends))
        assert all(loan.helper != worker for loan in sampler.loans if loan.owner == worker)


@given(BLOCKS, st.integers(1, 9), SPEEDS, st.integers(1, 300))
def test_samples_of_all_workers_are_those_of_the_step(n_blocks, n_workers, speeds, n_samples):
    sampler, _ = divided(n_blocks, n_workers, speeds)
    sampler.n_samples = n_samples
    order = sampler.permutation(1)
    for step in range(sampler.n_steps):
        mine = [sampler.samples(order, step, worker) for worker in range(sampler.n_workers)]
        begin = step * sampler.samples_per_step
        np.testing.assert_array_equal(
            np.sort(np.concatenate(mine)), np.sort(order[begin : begin + sampler.samples_in(step)])
        )
        if sampler.samples_in(step) == sampler.samples_per_step:
            assert [len(own) for own in mine] == sampler.shares


def test_same_sizes_change_nothing():
    sampler = made(16, 2)
    assert sampler.divide([12, 4])
    loans = sampler.loans
    assert not sampler.divide([12, 4])
    assert sampler.loans is loans
    assert sampler.divide([8, 8])
    assert sampler.loans == []


def test_neighbours_help_first():
    owners = [owned(4, worker, 16) for worker in range(4)]
    assert arranged(owners, [6, 2, 2, 6], 4) == [Loan(1, 0, slice(6, 8)), Loan(2, 3, slice(10, 12))]


def test_workers_of_a_node_help_before_neighbours_on_another():
    owners = [owned(4, worker, 16) for worker in range(4)]
    assert arranged(owners, [2, 6, 2, 6], 4, [0, 0, 1, 1]) == [Loan(0, 1, slice(2, 4)), Loan(2, 3, slice(10, 12))]
    assert arranged(owners, [6, 6, 2, 2], 4, [0, 1, 1, 0]) == [Loan(2, 1, slice(10, 12)), Loan(3, 0, slice(14, 16))]
    assert arranged(owners, [4, 6, 2, 4], 4, [0, 1, 0, 1]) == [Loan(2, 1, slice(10, 12))], "who else is there"
