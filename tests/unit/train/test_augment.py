"""Augmentations of training samples: the same as in NumPy from the same draws, and drawn as they should be."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from psframe import compiled
from psframe.config.augment import Augment
from psframe.errors import UserError
from psframe.memory.allocator import Allocator
from psframe.nn.losses import Targets
from psframe.train.data import augment
from psframe.train.data.augment import Recipe
from psframe.train.data.batches import Batches
from psframe.train.data.dataset import Facts

N, SEED = 9, 5
ALL = Augment(crop=2, flip="both", cutout=3, mixup=0.4)


def made(shape, asked=ALL, dtype="uint8", n=N, crop=None, flip=False, smoothing=0.0):
    """Return batches of random samples, and their arrays."""
    rng, channels = np.random.default_rng(0), shape[0]
    facts = Facts(
        [*shape], dtype, 10, n, n, crop, flip, [100.0 + c for c in range(channels)], [7.0 + c for c in range(channels)]
    )
    arrays = facts.arrays(np.zeros(facts.n_bytes, np.uint8))
    for split in ("train", "test"):
        arrays[f"{split}_images"][:] = rng.integers(0, 256, arrays[f"{split}_images"].shape)
        arrays[f"{split}_labels"][:] = rng.integers(0, 10, n)
    arrays["moments"][:] = facts.mean, facts.std
    augment.check(asked, facts)
    return Batches(facts, arrays, n, Recipe(SEED, asked, smoothing), Allocator()), arrays


def numbers(stream, epoch, sample, m):
    out = np.empty((1, m), np.float32)
    compiled.random.uniform(SEED, stream, epoch, np.array([sample]), out)
    return out[0].tolist()


def seen(x, sides, axes, asked, mirrors, epoch, sample):
    """Return a normalized sample, float32 (C, H, W), as NumPy augments it along ``axes`` to ``sides`` (h, w)."""
    u, cuts = numbers(compiled.random.AUGMENT, epoch, sample, 6), [slice(None)] * 3
    for axis in axes:
        whole, side = x.shape[axis], sides[axis - 1]
        x = np.pad(x, [(asked.crop * (other == axis),) * 2 for other in range(3)])
        begin = math.floor(u[axis - 1] * (whole - side + 2 * asked.crop + 1))
        x = x.take(range(begin, begin + side), axis)
        cut = math.floor(u[3 + axis] * side) - asked.cutout // 2
        cuts[axis] = slice(max(0, cut), max(0, cut + asked.cutout))
    if mirrors and u[2] < 0.5:
        x = x[:, :, ::-1]
    if asked.flip in ("vertical", "both") and u[3] < 0.5:
        x = x[:, ::-1]
    x = x.copy()
    x[tuple(cuts)] = 0
    return x.transpose(1, 2, 0)


def partner_of(epoch, sample, n):
    first, second, *_ = numbers(compiled.random.MIXUP, epoch, sample, 2)
    return math.floor((first + second / 2**24) * n)


@st.composite
def cases(draw):
    """Draw a sample's shape, what is asked for, and the keys of a dataset."""
    shape = [draw(st.integers(1, 3)), *draw(st.lists(st.integers(1, 9), min_size=1, max_size=2))]
    crop = draw(st.none() | st.tuples(*(st.integers(1, n) for n in shape[1:]))) if len(shape) == 3 else None
    side = min(crop or shape[1:])
    asked = Augment(
        crop=draw(st.integers(0, side - 1)),
        flip=draw(st.sampled_from(["none", "horizontal", "vertical", "both"])) if len(shape) == 3 else "none",
        cutout=draw(st.integers(0, side)),
        mixup=draw(st.sampled_from([0.0, 0.2, 1.0, 5.0])),
    )
    return shape, crop, asked, draw(st.booleans()) and len(shape) == 3, draw(st.sampled_from(["uint8", "float32"]))


@given(cases(), st.integers(0, 9))
def test_samples_are_those_of_numpy(case, epoch):
    shape, crop, asked, flip, dtype = case
    batches, arrays = made(shape, asked, dtype, crop=None if crop is None else [*crop], flip=flip)
    axes = (1, 2) if len(shape) == 3 else (2,)
    sides = crop or [1, *shape[1:]][-2:]
    scale, shift = batches.scale[:, None, None], batches.shift[:, None, None]
    mirrors = flip or asked.flip in ("horizontal", "both")
    order = np.random.default_rng(epoch).permutation(N)
    x, targets = batches.load("train", order, epoch), batches.targets_of(order, epoch)
    stored = arrays["train_images"].astype(np.float32) * scale + shift
    wanted = [seen(stored[i], sides, axes, asked, mirrors, epoch, i) for i in range(N)]
    labels = arrays["train_labels"]
    if not asked.mixup:
        np.testing.assert_array_equal(x, np.stack(wanted)[order])
        np.testing.assert_array_equal(targets, labels[order])
        return
    partners = [partner_of(epoch, i, N) for i in order]
    for got, i, j, share in zip(x, order, partners, targets.shares, strict=True):
        np.testing.assert_array_equal(got, share * wanted[i] + (np.float32(1) - share) * wanted[j])
    np.testing.assert_array_equal(targets.labels, labels[order])
    np.testing.assert_array_equal(targets.others, labels[partners])


@pytest.mark.parametrize("shape", [(2, 7, 8), (2, 11)])
def test_sample_looks_the_same_in_any_batch(shape):
    asked = ALL if len(shape) == 3 else Augment(crop=2, cutout=3, mixup=0.4)
    batches, _ = made(shape, asked, smoothing=0.1)
    whole = batches.load("train", np.arange(N), 3).copy()
    targets = [np.copy(values) for values in batches.targets_of(np.arange(N), 3)]
    for samples in (np.array([4]), np.array([8, 1, 1]), np.arange(N)[::-1].copy()):
        part = batches.targets_of(samples, 3)
        for values, of_whole in zip(part[:3], targets, strict=False):
            np.testing.assert_array_equal(values, of_whole[samples])
        np.testing.assert_array_equal(batches.load("train", samples, 3), whole[samples])
    assert (batches.load("train", np.arange(N), 4) != whole).any()
    none = np.empty(0, np.int64)
    assert [len(batches.load("train", none, 3)), *map(len, batches.targets_of(none, 3)[:3])] == [0, 0, 0, 0]


def test_row_of_the_input_buffer_is_where_it_is_asked_for():
    batches, _ = made((1, 4, 4), n=N)
    batches.x[:] = 77
    x = batches.load("train", np.array([3, 5]), 0, first=4)
    assert np.shares_memory(x, batches.x[4:6])
    assert (batches.x[:4] == 77).all()
    assert (batches.x[6:] == 77).all()


@pytest.mark.parametrize("shape", [(2, 7, 8), (2, 11)])
def test_test_samples_are_not_augmented(shape):
    asked = ALL if len(shape) == 3 else Augment(crop=2, cutout=3, mixup=0.4)
    plain, _ = made(shape, Augment())
    batches, _ = made(shape, asked, smoothing=0.1)
    samples = np.array([3, 0, 8])
    np.testing.assert_array_equal(batches.load("test", samples, 2), plain.load("test", samples))
    labels = batches.labels_of("test", samples)
    assert not isinstance(labels, Targets)
    np.testing.assert_array_equal(labels, plain.labels_of("test", samples))
    assert (batches.load("train", samples, 2) != plain.load("train", samples)).any()


def test_without_augmentation_labels_are_plain_unless_smoothed():
    batches, arrays = made((1, 3, 3), Augment())
    assert isinstance(batches.targets_of(np.arange(4), 1), np.ndarray)
    smoothed = made((1, 3, 3), Augment(), smoothing=0.2)[0].targets_of(np.arange(4), 1)
    np.testing.assert_array_equal(smoothed.labels, arrays["train_labels"][:4])
    assert (len(smoothed.others), len(smoothed.shares), smoothed.smoothing) == (0, 0, 0.2)


def test_windows_flips_and_cuts_are_everywhere_alike():
    """All places of a window, both sides of a flip and all centres of a cut, with frequencies within 5 deviations."""
    n = 6000
    batches, _ = made((1, 5, 6), Augment(crop=1, flip="both", cutout=3), n=n)
    batches.load("train", np.arange(n), 1)
    plan = batches.plan
    for columns, places in ((slice(0, 2), (3, 3)), (slice(2, 4), (2, 2)), (slice(4, 6), (5, 6))):
        values, counts = np.unique(plan[:, columns], axis=0, return_counts=True)
        of_each = n / math.prod(places)
        assert len(values) == math.prod(places)
        assert np.abs(counts - of_each).max() < 5 * math.sqrt(of_each)
    assert plan[:, :2].min() == -1
    assert plan[:, 4:6].min() == -1
    np.testing.assert_array_equal(plan[:, 6:], plan[:, 4:6] + 3)


def test_partners_are_uniform_and_shares_of_the_beta_distribution():
    n = 40_000
    drawn, partners, shares = np.empty((n, 4), np.float32), np.empty(n, np.int64), np.empty(n, np.float32)
    for epoch, alpha in enumerate((0.1, 0.2, 0.5, 1.0, 2.0, 30.0)):
        compiled.random.uniform(SEED, compiled.random.MIXUP, epoch, np.arange(n), drawn)
        compiled.batch.mix(drawn, 8, alpha, partners, shares)
        assert np.abs(np.bincount(partners, minlength=8) - n / 8).max() < 5 * math.sqrt(n / 8)
        assert 0 <= shares.min() <= shares.max() <= 1
        # the variable has this density in t, x = sin(t)^2, which is smooth for alpha >= 1/2 and integrable below
        t = (np.arange(400_000) + 0.5) / 400_000 * math.pi / 2
        density = (np.sin(t) * np.cos(t)) ** (2 * alpha - 1)
        edges = np.arcsin(np.sqrt(np.linspace(0, 1, 11)))
        wanted = np.histogram(t, edges, weights=density / density.sum())[0] * n
        counts = np.histogram(shares, np.linspace(0, 1, 11))[0]
        kept = wanted > 5
        error = 0.02 if alpha < 0.5 else 0  # of the integral at its ends
        assert np.abs(counts - wanted)[kept].max() < 5 * np.sqrt(wanted.max()) + error * n, (alpha, counts, wanted)


def test_shares_of_any_alpha_and_number_are_finite():
    ends = np.array([0, 2**-24, 0.25, 0.5, 0.75, 1 - 2**-24], np.float32)
    drawn = np.stack([np.zeros(36), np.zeros(36), np.repeat(ends, 6), np.tile(ends, 6)], 1).astype(np.float32)
    partners, shares = np.empty(36, np.int64), np.empty(36, np.float32)
    for alpha in (5e-324, 1e-9, 0.2, 1.0, 1e9, 3.4e38):
        compiled.batch.mix(drawn, 1, alpha, partners, shares)
        assert ((shares >= 0) & (shares <= 1)).all()
        assert (partners == 0).all()


def test_partner_of_many_samples_may_be_any():
    drawn = np.array([[0, 2**-24, 0, 0], [1 - 2**-24, 1 - 2**-24, 0, 0]], np.float32)
    partners, shares = np.empty(2, np.int64), np.empty(2, np.float32)
    compiled.batch.mix(drawn, 2**40, 1.0, partners, shares)
    assert partners.tolist() == [0, 2**40 - 1], "two numbers of 24 bits tell 2^40 samples apart"
    compiled.batch.mix(drawn, 1, 1.0, partners, shares)
    assert partners.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("shape", "asked", "words"),
    [
        ((1, 8, 9), Augment(crop=8), ["augment.crop", "8 of (1, 8, 9)", "got 8", "augment.crop=7"]),
        ((1, 8, 9), Augment(cutout=9), ["augment.cutout", "8 of (1, 8, 9)", "got 9", "augment.cutout=8"]),
        ((3, 20), Augment(crop=20), ["augment.crop", "sequences", "20 of (3, 20)"]),
        ((3, 20), Augment(cutout=21), ["augment.cutout", "sequences", "20 of (3, 20)"]),
        ((3, 20), Augment(flip="vertical"), ["augment.flip", "none for sequences", "got vertical"]),
    ],
)
def test_impossible_augmentations_are_told(shape, asked, words):
    with pytest.raises(UserError) as told:
        made(shape, asked)
    assert all(word in str(told.value) for word in words), told.value
    made(shape, Augment(crop=min(shape[1:]) - 1, cutout=min(shape[1:])))


def test_gather_refuses_what_does_not_fit():
    images, one = np.zeros((3, 1, 2, 2), np.uint8), np.ones(1, np.float32)
    plan, none = np.zeros((2, 8), np.int64), np.empty(0, np.float32)
    index, out = np.arange(2), np.empty((2, 2, 2, 1), np.float32)
    with pytest.raises(ValueError, match="one row a sample"):
        compiled.batch.gather(images, index, plan[:1], none, one, one, one, out)
    with pytest.raises(ValueError, match="one row a sample"):
        compiled.batch.gather(images, index, plan, np.ones(2, np.float32), one, one, one, out)
    with pytest.raises(ValueError, match="spare room"):
        compiled.batch.gather(images, index, plan, np.ones(1, np.float32), one, one, one, out[:1])
    with pytest.raises(IndexError, match="sample 3"):
        compiled.batch.gather(images, index + 2, plan, none, one, one, one, out)
    compiled.batch.gather(images, index, np.full((2, 8), 2**62), none, one, one, one, out)
    assert (out == 0).all(), "a window that misses its sample has none of it"
