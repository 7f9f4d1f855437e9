"""Datasets and a model of a user's own, each with a mistake."""

import numpy as np

from psframe.datasets.base import Dataset, held


def mislabelled():
    """A dataset with a label that no class has."""
    split = held(np.zeros((60, 1, 6, 6), np.float32), np.array([0, 1, 9] * 20))
    return Dataset((1, 6, 6), "float32", 3, split, split)


def misshapen():
    """A dataset whose samples are not of the shape it tells."""
    split = held(np.zeros((60, 1, 5, 6), np.float32), np.zeros(60, np.int64))
    return Dataset((1, 6, 6), "float32", 3, split, split)


def no_model(input_shape, n_classes):
    """A model that forgets to return its layers."""
