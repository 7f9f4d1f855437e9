"""One-dimensional network for human activity recognition (:func:`har_cnn`)."""

from psframe.config.registry import Fraction
from psframe.models.base import need_sequence
from psframe.nn.activations import Dropout, Flatten, ReLU
from psframe.nn.base import Layer, Shape
from psframe.nn.conv import Conv1d
from psframe.nn.dense import Dense
from psframe.nn.pool import MaxPool1d


def har_cnn(input_shape: Shape, n_classes: int, *, dropout: Fraction = 0.5) -> list[Layer]:
    """Return the four-layer 1-D CNN of Hasheminezhad et al. 2020, "Towards a scalable and distributed infrastructure
    for deep learning applications"; the UCI data has shape (9, 128) and 6 classes.

    Parameters
    ----------
    dropout : float
        Probability, in [0, 1), that an input of the pooling is dropped.
    """
    need_sequence("har_cnn", input_shape)
    convolutions: list[Layer] = []
    for _ in range(4):
        convolutions += [Conv1d(64, 3, init="he"), ReLU()]
    return [
        *convolutions,
        Dropout(dropout),
        MaxPool1d(2),
        Flatten(),
        Dense(100, init="he"),
        ReLU(),
        Dense(n_classes),
    ]
