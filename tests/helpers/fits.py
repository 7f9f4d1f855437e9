"""Short fits of a script: arguments of ``psframe.fit``."""

import numpy as np

from psframe.nn.activations import Flatten
from psframe.nn.dense import Dense


def samples(n=60):
    """Return images of three classes that differ in the half that is dark."""
    images = np.random.default_rng(0).integers(0, 255, (n, 6, 6), np.uint8)
    labels = np.arange(n) % 3
    images[labels == 1, :3] = 0
    images[labels == 2, 3:] = 0
    return images, labels


def given(tmp_path, **changes):
    """Return arguments of a short run, with some of them changed; None leaves one out."""
    usual = {
        "model": [Flatten(), Dense(3)],
        "data": samples(),
        "test_data": samples(30),
        "ranks": 2,
        "quiet": True,
        "train": {"epochs": 2, "batch_size": 10},
        "record": {"dir": str(tmp_path / "runs")},
    }
    return {key: value for key, value in {**usual, **changes}.items() if value is not None}
