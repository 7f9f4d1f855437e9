"""A dataset of your own: a function that returns a Dataset. This one draws noise around a pattern for each class."""

import numpy as np

from psframe.datasets.base import Dataset, held


def data(*, samples: int = 1200, classes: int = 4, seed: int = 0):
    """Return images, float32 (n, 1, 12, 12), and labels, whole numbers from 0; a fifth of them tests."""
    rng = np.random.default_rng(seed)
    patterns = rng.random((classes, 1, 12, 12), np.float32)
    labels = np.arange(samples) % classes
    images = patterns[labels] + rng.standard_normal((samples, 1, 12, 12), np.float32)
    n_test = samples // 5
    return Dataset(
        shape=(1, 12, 12),
        dtype="float32",
        n_classes=classes,
        train=held(images[n_test:], labels[n_test:]),
        test=held(images[:n_test], labels[:n_test]),
    )
