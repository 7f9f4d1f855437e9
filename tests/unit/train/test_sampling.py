"""Which samples a worker takes, and what the network gets of them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe.memory.allocator import Allocator
from psframe.sync.sampler import Sampler
from psframe.train.data.augment import Recipe
from psframe.train.data.batches import Batches
from psframe.train.data.dataset import Facts, moments


@given(st.integers(1, 500), st.integers(1, 70), st.integers(1, 40), st.integers(0, 2**62 - 1), st.integers(0, 5))
def test_samples_are_all_seen_once_an_epoch(n_samples, n_workers, batch_size, seed, epoch):
    sampler = Sampler(n_samples, n_workers, batch_size, seed)
    order = sampler.permutation(epoch)
    seen = []
    for step in range(sampler.n_steps):
        shares = [order[sampler.share(step, worker)] for worker in range(n_workers)]
        assert sum(map(len, shares)) == sampler.samples_in(step) >= 1
        assert max(map(len, shares)) <= sampler.max_batch <= batch_size
        assert max(map(len, shares)) - min(map(len, shares)) <= 1, "a step is shared evenly"
        seen += [s for share in shares for s in share]
    assert sorted(seen) == list(range(n_samples))


@given(st.integers(1, 6), st.integers(1, 6))
def test_global_batch_is_the_same_whoever_takes_part(workers, others):
    n, whole = 200, 60
    one, other = Sampler(n, workers, whole // workers, 9), Sampler(n, others, whole // others, 9)
    for step in range(one.n_steps):
        batches = [
            np.concatenate([s.permutation(3)[s.share(step, w)] for w in range(s.n_workers)]) for s in (one, other)
        ]
        np.testing.assert_array_equal(*batches)


def test_permutations_differ_by_seed_and_epoch_and_are_uniform():
    orders = [tuple(Sampler(50, 1, 1, seed).permutation(epoch)) for seed in range(3) for epoch in range(3)]
    assert len(set(orders)) == 9
    first = [Sampler(4, 1, 1, seed).permutation(0)[0] for seed in range(4000)]
    assert np.bincount(first, minlength=4).min() > 900


def batches(images, labels=None, crop=None, flip=False, mean=None, std=None):
    shape = list(images.shape[1:])
    n = len(images)
    facts = Facts(shape, str(images.dtype), 10, n, n, crop, flip, mean, std)
    arrays = facts.arrays(np.zeros(facts.n_bytes, np.uint8))
    for split in ("train", "test"):
        arrays[f"{split}_images"][:] = images.reshape(arrays[f"{split}_images"].shape)
        arrays[f"{split}_labels"][:] = np.arange(n) % 10 if labels is None else labels
    arrays["moments"][:] = (mean, std) if mean else moments(arrays["train_images"])
    return Batches(facts, arrays, n, Recipe(5), Allocator()), arrays


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_input_is_normalised_by_channel_and_channels_last(dtype):
    images = (np.random.default_rng(0).random((40, 3, 5, 6)) * 200).astype(dtype)
    samples = np.array([7, 0, 33])
    made, _ = batches(images)
    x, labels = made.load("train", samples), made.targets_of(samples, 0)
    assert x.shape == (3, 5, 6, 3)
    mean, std = images.mean((0, 2, 3), np.float64), images.std((0, 2, 3), np.float64)
    wanted = (images[[7, 0, 33]].transpose(0, 2, 3, 1) - mean) / std
    np.testing.assert_allclose(x, wanted, rtol=1e-4, atol=1e-5)
    assert labels.tolist() == [7, 0, 3]


def test_sequences_are_images_of_height_one():
    images = np.random.default_rng(0).random((9, 4, 11)).astype("float32")
    x = batches(images)[0].load("test", np.array([2]))
    assert x.shape == (1, 1, 11, 4)
    wanted = (images[2].T - images.mean((0, 2))) / images.std((0, 2))
    np.testing.assert_allclose(x[0, 0], wanted, rtol=1e-3, atol=1e-4)


def test_constant_channel_is_not_divided_by_zero():
    x = batches(np.full((4, 1, 2, 2), 7, np.uint8))[0].load("train", np.arange(4))
    np.testing.assert_array_equal(x, 0)


def test_crops_and_mirrors_depend_on_seed_epoch_and_sample_alone():
    images = np.random.default_rng(0).integers(0, 255, (30, 1, 8, 9), np.uint8)
    made, _ = batches(images, crop=[5, 6], flip=True, mean=[0.0], std=[1.0])
    whole = made.load("train", np.arange(30), epoch=2).copy()
    for part in (np.array([4, 5]), np.array([29]), np.arange(30)[::-1].copy()):
        np.testing.assert_array_equal(made.load("train", part, epoch=2), whole[part])
    assert (made.load("train", np.arange(30), epoch=3) != whole).any()
    places = set()
    for sample, crop in enumerate(whole[..., 0]):
        found = [
            (y, x, mirrored)
            for y in range(4)
            for x in range(4)
            for mirrored in (False, True)
            if (images[sample, 0, y : y + 5, x : x + 6][:, :: -1 if mirrored else 1] == crop).all()
        ]
        assert len(found) == 1, "an input is one window of its image"
        places.add(found[0])
    assert len(places) > 10
    every = [made.load("train", np.arange(30), epoch=epoch).any() and made.plan.copy() for epoch in range(20)]
    assert {tuple(row) for row in np.concatenate(every).tolist()} == {
        (y, x, mirrored, 0, 0, 0, 0, 0) for y in range(4) for x in range(4) for mirrored in (0, 1)
    }, "no place, first or last, is left out"
    centred = made.load("test", np.array([3]))[0, :, :, 0]
    np.testing.assert_array_equal(centred, images[3, 0, 1:6, 1:7])


def test_sample_outside_is_refused():
    with pytest.raises(IndexError, match="99"):
        batches(np.zeros((4, 1, 2, 2), np.uint8))[0].load("train", np.array([99]))
