"""Trained network of a run, in this process (:class:`TrainedNetwork`): logits of new samples, given as they come."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from psframe.api import script
from psframe.config import registry
from psframe.config.schema import Config
from psframe.errors import UserError
from psframe.memory.allocator import Allocator
from psframe.memory.arena import Arena
from psframe.models import TABLE as MODELS
from psframe.nn.base import Pass
from psframe.nn.folding import folded
from psframe.nn.initial import initialize
from psframe.nn.jit import compiling
from psframe.nn.losses import softmax_cross_entropy
from psframe.nn.network import Network
from psframe.nn.precision import BFloat16
from psframe.record.checkpoint import Saved
from psframe.record.inputs import Inputs
from psframe.train.data.augment import Recipe
from psframe.train.data.batches import Batches

MAX_BATCH = 256  # samples that are computed together


@dataclass(frozen=True)
class Training:
    """Result of a training: all that its network needs. It can be pickled if its objects can be.

    Attributes
    ----------
    config : Config
    inputs : Inputs
        Shape and normalization of the samples that it was trained on.
    saved : Saved
        Checkpoint.
    objects : dict of str to object
        Objects of the script that the config names.
    """

    config: Config
    inputs: Inputs
    saved: Saved
    objects: dict[str, Any]


class TrainedNetwork:
    """Network of a training, in this process.

    Parameters
    ----------
    of : Training

    Raises
    ------
    UserError
        The model does not fit the samples, or has other tensors than the checkpoint.
    """

    def __init__(self, of: Training):
        self.of = of
        config, inputs, saved = of.config, of.inputs, of.saved
        self.inputs, self._seed = inputs, config.train.seed
        with script.given(of.objects):
            choice = registry.bind("model", MODELS, config.model).taking(2)
            layers, shape = choice(inputs.input_shape, inputs.n_classes), inputs.input_shape
            # a network that was trained on another CPU is wanted here, too
            precision = config.train.precision if BFloat16.available() else "float32"
            network = Network(layers, shape, inputs.n_classes, precision=precision)
        if network.layout.describe() != saved.layout:
            raise UserError(
                f"a run's model must have the tensors of its checkpoint, got {config.model.get('name')!r} with others; "
                "give the model that the run was trained with"
            )
        tensors = {name: slot.view(saved.evaluated) for name, slot in network.layout.slots.items()}
        fewer, of_fewer = folded(network.layers, tensors)
        if len(of_fewer) < len(tensors):
            network, tensors = Network(fewer, shape, inputs.n_classes, precision=precision), of_fewer
        self.network, allocator = network, Allocator()
        arena = Arena(self.network.layout, 0, allocator)
        self.network.bind(arena, MAX_BATCH, allocator, config.nn.kernels, infers=True)
        initialize(self.network, self._seed)  # what is not in a checkpoint: frozen parts of a user's module
        for name, view in arena.views(arena.params).items():
            view[...] = tensors[name]
        height = [1] if len(inputs.shape) == 2 else []
        self._sample = (inputs.shape[0], *height, *inputs.shape[1:])
        arrays = {
            "test_images": np.zeros((1, *self._sample), inputs.dtype),
            "test_labels": np.zeros(MAX_BATCH, np.int64),
            "moments": np.array([inputs.mean, inputs.std]),
        }
        self._batches = Batches(inputs, arrays, MAX_BATCH, Recipe(self._seed), allocator)
        self._kernels = config.nn.kernels

    def __reduce__(self) -> tuple[Any, ...]:
        return TrainedNetwork, (self.of,)  # its memory and compiled parts are made anew

    def batches(self, images: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield slices of the samples, with their logits (n, n_classes) float32, valid until the next one.

        ``images`` are as in :meth:`logits`.
        """
        images = self._stored(images)
        for part in _parts(len(images)):
            x = self._load(images, part)
            with compiling(self._kernels):
                yield part, self.network.forward(x, Pass())

    def normalized(self, images: np.ndarray) -> np.ndarray:
        """Return samples as the network takes them, float32 (n, C, H, W) or (n, C, T), with its crop."""
        images = self._stored(images)
        x = np.empty((len(images), *self.inputs.input_shape), np.float32)
        for part in _parts(len(images)):
            loaded = self._load(images, part).transpose(0, 3, 1, 2)
            x[part] = loaded.reshape(x[part].shape)
        return x

    def logits(self, images: np.ndarray) -> np.ndarray:
        """Return the logits, float32 (n, n_classes), of samples (n, C, H, W) or (n, C, T) in the data's units.

        Images of one channel may be (n, H, W). Any real dtype is accepted.
        """
        logits = np.empty((len(images), self.inputs.n_classes), np.float32)
        for part, of_part in self.batches(images):
            logits[part] = of_part
        return logits

    def loss_and_hits(self, logits: np.ndarray, labels: np.ndarray) -> tuple[float, int]:
        """Return the summed loss and the number of correct samples, computed batch by batch as in training."""
        loss, n_correct = 0.0, 0
        nothing = np.empty((0, self.inputs.n_classes), np.float32)
        for part in _parts(len(labels)):
            of_part = softmax_cross_entropy(logits[part], labels[part], nothing)
            loss, n_correct = loss + of_part[0], n_correct + of_part[1]
        return loss, n_correct

    def _load(self, images: np.ndarray, part: slice) -> np.ndarray:
        """Return the network's input (n, H, W, C) for a part of the samples, valid until the next call."""
        self._batches.arrays["test_images"] = _finite(np.ascontiguousarray(images[part]), part.start)
        return self._batches.load("test", np.arange(part.stop - part.start))

    def _stored(self, images: Any) -> np.ndarray:
        """Return samples as they are stored, (n, C, H, W) of uint8 or float32; UserError if they are others."""
        array, shape = np.asarray(images), tuple(self.inputs.shape)
        if array.shape[1:] == shape[1:] and shape[0] == 1 and array.ndim == len(shape):
            array = array[:, None]
        if array.shape[1:] != shape or array.dtype.kind not in "uifb":
            last = "; transpose them, the channels lie last" if array.shape[1:] == (*shape[1:], shape[0]) else ""
            raise UserError(
                f"samples must be numbers of shape (n, {', '.join(map(str, shape))}), as in training, got "
                f"{array.dtype} {array.shape}{last or '; reshape or scale them'}"
            )
        keeps = array.dtype == np.uint8 and self.inputs.dtype == "uint8"
        return array.astype(np.uint8 if keeps else np.float32, copy=False).reshape(len(array), *self._sample)


def _parts(n: int) -> Iterator[slice]:
    """Yield slices of at most ``MAX_BATCH`` of ``n`` samples."""
    for begin in range(0, n, MAX_BATCH):
        yield slice(begin, min(begin + MAX_BATCH, n))


def _finite(images: np.ndarray, first: int) -> np.ndarray:
    if images.dtype == np.float32 and not np.isfinite(images).all():
        wrong = int(np.flatnonzero(~np.isfinite(images).reshape(len(images), -1).all(axis=1))[0])
        raise UserError(f"samples must hold finite numbers, got others in sample {first + wrong}; leave it out")
    return images
