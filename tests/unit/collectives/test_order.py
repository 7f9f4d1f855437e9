"""The balanced tree: its bits against NumPy's, and that every number of workers, on any nodes, cuts the same one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe import compiled
from psframe.collectives.order import merges, nodes, owned, stacked, widths
from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena, Layout, Vectors
from psframe.nn.base import Param
from psframe.optim import SGD, Updater
from psframe.train.compute.blocks import BlockSampler

F = np.float32
BLOCKS = 64


def numbers(seed, *shape):
    """Numbers whose sum depends on the order."""
    drawn = np.random.default_rng(seed).standard_normal(shape)
    return (drawn * 10.0 ** np.random.default_rng(seed).integers(-3, 4, shape)).astype(F)


def tree(rows):
    """The reference: half and half, down to single rows."""
    if len(rows) == 1:
        return rows[0]
    half = len(rows) // 2
    return tree(rows[:half]) + tree(rows[half:])


def added(rows, order):
    """What the compiled sum makes of rows."""
    out = np.full(len(rows[0]), np.nan, F)
    assert compiled.elementwise.Mean(list(rows), order).into(out)
    return out


@given(st.integers(0, 6), st.integers(1, 5000), st.integers(1, 10**6))
def test_sum_of_blocks_is_a_balanced_tree(power, size, n_samples):
    rows = numbers(size, 1 << power, size)
    order = merges([1] * len(rows))
    out = np.full(size, np.nan, F)
    compiled.elementwise.Mean(list(rows), order).over(n_samples).into(out)
    np.testing.assert_array_equal(out, tree(rows) / F(n_samples))


def test_tree_is_no_left_fold():
    rows = numbers(1, 8, 1000)
    assert (added(rows, merges([1] * 8)) != added(rows, None)).any()


@given(st.integers(1, BLOCKS), st.integers(0, 99))
def test_workers_of_any_number_end_in_the_same_bits(n_workers, seed):
    blocks = numbers(seed, BLOCKS, 300)
    shares = [owned(n_workers, worker, BLOCKS) for worker in range(n_workers)]
    assert [number for share in shares for number in range(share.start, share.stop)] == list(range(BLOCKS))
    sizes = [share.stop - share.start for share in shares]
    assert max(sizes) <= 2 * min(sizes)
    rows = [added(blocks[share], merges([1] * size)) for share, size in zip(shares, sizes, strict=True)]
    np.testing.assert_array_equal(added(rows, merges(widths(n_workers))), tree(blocks))


@given(st.integers(0, 200), st.integers(1, 200))
def test_nodes_of_blocks_are_whole_and_as_large_as_can_be(begin, n):
    found = nodes(slice(begin, begin + n))
    assert [block for node in found for block in range(node.start, node.stop)] == list(range(begin, begin + n))
    for node in found:
        width = node.stop - node.start
        assert width & (width - 1) == 0, "no power of two"
        assert node.start % width == 0, "no node begins here"
        larger = slice(node.start // (2 * width) * 2 * width, node.start // (2 * width) * 2 * width + 2 * width)
        assert larger.start < begin or larger.stop > begin + n, "a larger node has it"


@given(st.integers(1, BLOCKS), st.data())
def test_sums_under_way_pass_from_node_to_node(n_workers, data):
    ends = sorted(data.draw(st.sets(st.integers(1, n_workers))) | {n_workers})
    rows, spans = list(numbers(n_workers, n_workers, 50)), widths(n_workers)
    running, of_running, begin = [], [], 0
    for end in ends:
        arrived, of_arrived = [*running, *rows[begin:end]], [*of_running, *spans[begin:end]]
        left = stacked(of_arrived)
        running = [added(arrived[part], merges(of_arrived[part])) for part, _ in left]
        of_running, begin = [width for _, width in left], end
        assert of_running == [width for _, width in stacked(spans[:end])]
    (total,) = running
    np.testing.assert_array_equal(total, added(rows, merges(spans)))


@pytest.mark.parametrize("number", range(4))
def test_row_of_any_number_may_be_the_result(number):
    rows, order = numbers(0, 4, 5000), [0, 0, 0, 3]
    wanted = rows[0] + (rows[1] + (rows[2] + rows[3]))
    compiled.elementwise.Mean(list(rows), order).into(rows[number])
    np.testing.assert_array_equal(rows[number], wanted)


@given(st.integers(1, 9), st.integers(1, 9000))
def test_fused_update_takes_the_same_mean(n_rows, size):
    rows, order = numbers(size, n_rows, size), merges(widths(n_rows))
    params, state = numbers(1, size), numbers(2, 1, size)
    vectors = Vectors([params.copy()], np.zeros(size, F), [state.copy()])
    arena = Arena(Layout({"all": Param((size,), (0,))}), 0, Allocator(), vectors=vectors)
    optimizer, mean = SGD(lr=0.1, momentum=0.9, weight_decay=0.01), compiled.elementwise.Mean(list(rows), order)
    update = Updater(optimizer, arena)
    update(slice(0, size), mean.over(7), 0.1, 1)
    gradient = np.empty(size, F)
    mean.into(gradient)
    optimizer.update(params, gradient, state, 0.1, 1)
    np.testing.assert_array_equal(arena.params, params)
    assert update.first_nonfinite_step == 0


@pytest.mark.parametrize("at", [0, 511, 512, 2048, 4999])
def test_mean_that_is_not_finite_is_noticed(at):
    rows = numbers(0, 5, 5000)
    rows[3, at] = np.inf
    assert not compiled.elementwise.Mean(list(rows), merges(widths(5))).into(np.empty(5000, F))


@pytest.mark.parametrize(
    ("n", "order", "word"),
    [
        (2, [0], "2 rows"),
        (2, [0, 0], "ends in 2"),
        (2, [1, 0], "what it has"),
        (3, [0, 1, 2], "what it has"),
        (2, [0, -1], "what it has"),
        (20, [*[0] * 19, 19], "at most 12"),
    ],
)
def test_order_that_is_no_tree_is_refused(n, order, word):
    with pytest.raises(ValueError, match=word):
        compiled.elementwise.Mean(list(np.zeros((n, 3), F)), order)


@given(st.integers(1, 500), st.integers(1, 16), st.integers(1, 100), st.integers(0, 3))
def test_steps_and_blocks_do_not_depend_on_the_workers(n_samples, n_workers, n_global, epoch):
    n_global = min(n_global, n_samples)
    sampler = BlockSampler(n_samples, n_workers, n_global, 7, n_global=n_global, n_blocks=16)
    alone = BlockSampler(n_samples, 1, n_global, 7, n_global=n_global, n_blocks=16)
    assert (sampler.n_steps, sampler.global_batch, sampler.max_batch) == (
        alone.n_steps,
        alone.global_batch,
        alone.max_batch,
    )
    order = sampler.permutation(epoch)
    for step in range(sampler.n_steps):
        shares = [order[sampler.share(step, worker)] for worker in range(n_workers)]
        np.testing.assert_array_equal(np.concatenate(shares), order[alone.share(step, 0)])
        n = sampler.samples_in(step)
        for worker, share in enumerate(shares):
            blocks = owned(n_workers, worker, 16)
            assert len(share) == sampler.size_of(step, worker) == n * blocks.stop // 16 - n * blocks.start // 16
