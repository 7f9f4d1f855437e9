"""Estimator of scikit-learn (:class:`Classifier`), for pipelines, cross-validation and searches.

Each fit is a job of its own over the ranks, which are the parallelism: leave ``n_jobs`` of a search at 1.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from psframe.api.fit import fit
from psframe.api.runs import softmax
from psframe.api.trained import TrainedNetwork
from psframe.nn.activations import Flatten, ReLU
from psframe.nn.base import Layer, Shape
from psframe.nn.dense import Dense

N_TOLD = 256  # samples whose loss and accuracy the epochs' records tell
MAX_SEED = 2**31


def perceptron(input_shape: Shape, n_classes: int) -> list[Layer]:
    """Return a network with one hidden layer of 100 units."""
    return [Flatten(), Dense(100), ReLU(), Dense(n_classes)]


class Classifier(ClassifierMixin, BaseEstimator):
    """Network that psframe trains over ranks of this machine.

    Parameters
    ----------
    model : str, mapping or object
        As of :func:`psframe.fit`: a name, ``{"name": "torch", "build": Net}``, a function that makes layers.
    input_shape : tuple of int, optional
        Shape (C, H, W) or (C, T) of a sample whose features are the row of a matrix. Without it each feature is a
        channel, (n_features, 1, 1), normalized by its own mean and deviation. Arrays of more dimensions are images, or
        sequences where this is (C, T).
    epochs, batch_size : int
        ``batch_size`` is of a worker.
    optimizer : str, mapping or object
    ranks : int
        Ranks to start, at most one a sample.
    config : path or mapping, optional
        Config below all of these, for its other sections.
    callbacks : sequence
        As of :func:`psframe.fit`.
    random_state : int, RandomState or None
    runs : path, optional
        Folder that keeps the runs; without it they are removed.

    Attributes
    ----------
    classes_ : ndarray, shape (n_classes,)
    n_features_in_ : int
    network_ : TrainedNetwork
    run_ : Run or None
        With ``runs``, the run.
    """

    def __init__(
        self,
        model: Any = perceptron,
        *,
        input_shape: Sequence[int] | None = None,
        epochs: int = 30,
        batch_size: int = 32,
        optimizer: Any = "adam",
        ranks: int = 2,
        config: str | Path | Mapping[str, Any] | None = None,
        callbacks: Sequence[Any] = (),
        random_state: Any = None,
        runs: str | Path | None = None,
    ):
        self.model, self.input_shape, self.epochs, self.batch_size = model, input_shape, epochs, batch_size
        self.optimizer, self.ranks, self.config, self.callbacks = optimizer, ranks, config, callbacks
        self.random_state, self.runs = random_state, runs

    def fit(self, X: Any, y: Any) -> "Classifier":
        """Train on samples ``X``, (n, n_features) or (n, C, H, W), and their classes ``y`` (n,); return self."""
        X, y = validate_data(self, X, y, allow_nd=True)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(f"Classifier must have samples of two classes, got one class, {self.classes_[0]!r}")
        images, is_sequence = self._images(X), len(self.input_shape or ()) == 2
        with TemporaryDirectory(prefix="psframe-") as folder:
            run = fit(
                self.config,
                model=self.model,
                data=(images, labels),
                test_data=(images[:N_TOLD], labels[:N_TOLD]),
                dataset={"n_classes": len(self.classes_), "sequences": is_sequence},
                optimizer=self.optimizer,
                train={"epochs": self.epochs, "batch_size": self.batch_size, "seed": self._seed()},
                record={"dir": str(self.runs or folder)},
                sync=None if self.config else "allreduce",
                ranks=min(self.ranks, len(labels)),
                callbacks=self.callbacks,
                quiet=True,
            )
            self.network_ = TrainedNetwork(run.training)
        self.run_ = run if self.runs else None
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Return the class of each sample, (n,)."""
        logits = self._logits(X)
        classes: np.ndarray = self.classes_[logits.argmax(axis=1)]
        return classes

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probabilities of the classes, float64 (n, n_classes), in the order of ``classes_``."""
        return softmax(self._logits(X))

    def _logits(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        images = self._images(validate_data(self, X, reset=False, allow_nd=True))
        return self.network_.logits(images)

    def _images(self, X: np.ndarray) -> np.ndarray:
        if X.ndim > 2:
            return X
        shape = tuple(self.input_shape or (X.shape[1], 1, 1))
        if int(np.prod(shape)) != X.shape[1]:
            raise ValueError(f"input_shape must have as many numbers as X has features, got {shape} for {X.shape[1]}")
        return X.reshape(len(X), *shape)

    def _seed(self) -> int:
        state = self.random_state
        return int(state if isinstance(state, int | np.integer) else check_random_state(state).randint(MAX_SEED))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags
