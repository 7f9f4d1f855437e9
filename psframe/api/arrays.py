"""Dataset of a script's arrays (:class:`Arrays`), which ranks read by slices from the script's own memory."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from psframe.datasets.base import Dataset, Split
from psframe.errors import UserError

SPLITS = ("train", "test")

#: ``read(split, lo, hi)`` returns images (hi - lo, *shape) and labels (hi - lo,)
Read = Callable[[str, int, int], tuple[np.ndarray, np.ndarray]]


class Array(Protocol):
    """An array, or what can be cut as one: a memory map, a dataset of h5py, a tensor."""

    @property
    def shape(self) -> Sequence[int]: ...

    def __getitem__(self, part: slice) -> Any: ...


class Arrays:
    """Training and test samples with their labels, as a script has them.

    Parameters
    ----------
    train, test : (images, labels)
        Images (n, C, H, W), greyscale ones (n, H, W), or sequences (n, C, T); labels (n,) of integers from 0.

    Attributes
    ----------
    shape : tuple of int
        Shape of a sample as it is given.
    dtype : str
        As stored, ``uint8`` or ``float32``.
    n_classes : int
        The largest label and one.
    sizes : dict of str to int
        Samples of each split.
    """

    def __init__(self, train: Any, test: Any):
        self._splits = {"train": _pair("data", train), "test": _pair("test_data", test)}
        images, _ = self._splits["train"]
        shape = tuple(map(int, images.shape[1:]))
        for name, (others, its_labels) in zip(("data", "test_data"), self._splits.values(), strict=True):
            if tuple(others.shape[1:]) != shape or len(others.shape) not in (3, 4):
                raise UserError(
                    f"{name} must be images (n, C, H, W) or (n, H, W), or sequences (n, C, T), as in training, got "
                    f"{tuple(others.shape)}; reshape them"
                )
            if len(shape) == 3 and shape[2] in (1, 3) and shape[0] == shape[1] > 3:
                raise UserError(
                    f"{name} must be images (n, C, H, W), got {tuple(others.shape)}, whose channels lie last; give "
                    "images.transpose(0, 3, 1, 2)"
                )
            if tuple(its_labels.shape) != (others.shape[0],) or not len(its_labels):
                raise UserError(
                    f"{name} must have one label a sample, ({others.shape[0]},), and at least one, got "
                    f"{tuple(its_labels.shape)}; mend them"
                )
            if its_labels.dtype.kind not in "iu":
                raise UserError(f"labels must be integers from 0, got {its_labels.dtype} in {name}; number the classes")
        self.shape = shape
        self.dtype = "uint8" if _dtype(images) == np.uint8 else "float32"
        self.sizes = {split: len(its_labels) for split, (_, its_labels) in self._splits.items()}
        self.n_classes = 1 + max(int(its_labels.max()) for _, its_labels in self._splits.values())

    def read(self, split: str, lo: int, hi: int) -> tuple[np.ndarray, np.ndarray]:
        """Return samples ``lo`` to ``hi - 1`` of a split, as they are stored, and their labels, int64."""
        images, labels = self._splits[split]
        with np.errstate(over="ignore"):  # infinite numbers are told where they are read
            return np.ascontiguousarray(np.asarray(images[lo:hi]), self.dtype), labels[lo:hi].astype(np.int64)

    @property
    def facts(self) -> dict[str, Any]:
        """What :func:`dataset` needs to know of the arrays."""
        return {"shape": self.shape, "dtype": self.dtype, "sizes": self.sizes, "n_classes": self.n_classes}


def dataset(facts: dict[str, Any], read: Read) -> Callable[..., Dataset]:
    """Return the loader of a dataset of such ``facts``, whose samples ``read`` returns."""

    def load(
        *,
        n_classes: int | None = None,
        sequences: bool = False,
        crop: tuple[int, int] | None = None,
        flip: bool = False,
        mean: list[float] | None = None,
        std: list[float] | None = None,
    ) -> Dataset:
        """Return the script's arrays as a dataset; ``sequences``: samples of two dimensions are (C, T), not (H, W).

        The other keys are as of :class:`psframe.datasets.base.Dataset`.
        """
        shape = tuple(facts["shape"])
        shape = (1, *shape) if len(shape) == 2 and not sequences else shape

        def split(name: str) -> Split:
            def of_shape(lo: int, hi: int) -> tuple[np.ndarray, np.ndarray]:
                images, labels = read(name, lo, hi)
                return images.reshape(hi - lo, *shape), labels

            return Split(facts["sizes"][name], of_shape)

        train, test = map(split, SPLITS)
        moments = (None if given is None else tuple(given) for given in (mean, std))
        return Dataset(shape, facts["dtype"], n_classes or facts["n_classes"], train, test, crop, flip, *moments)

    return load


def _pair(name: str, given: Any) -> tuple[Array, np.ndarray]:
    """Return images and labels as given; UserError if these are not two."""
    try:
        images, labels = given
    except (TypeError, ValueError):
        raise UserError(
            f"{name} must be images and labels, got {type(given).__name__}; give (images, labels)"
        ) from None
    return images if hasattr(images, "shape") else np.asarray(images), np.asarray(labels)


def _dtype(images: Array) -> np.dtype[Any]:
    """Return the type of an array's numbers; UserError if they are none."""
    dtype = np.asarray(images[0:1]).dtype
    if dtype.kind not in "uifb":
        raise UserError(f"images must be real numbers, got {dtype}; convert them")
    return dtype
