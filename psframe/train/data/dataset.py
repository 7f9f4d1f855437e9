"""Dataset in memory (:func:`hold`): read in slices, once per node, and shared by the node's ranks."""

import errno
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from psframe import compiled
from psframe.cluster import consistency
from psframe.cluster.cluster import Cluster
from psframe.errors import UserError, limits
from psframe.memory.allocator import padded
from psframe.memory.free_memory import available
from psframe.memory.pages import RESERVED_BYTES, no_huge_pages
from psframe.memory.role_placement import Places
from psframe.record.flight import READ, RING, in_phase
from psframe.record.inputs import Inputs
from psframe.train.data import dataset_checks

if TYPE_CHECKING:
    from psframe.datasets.base import Dataset, Split

Arrays = dict[str, np.ndarray]

SPLITS = {"train": "training", "test": "test"}
SLICE_BYTES = 4 << 20  # per read
ROUNDING = 1e-13  # share of a square mean: that of float32's last place, squared, and of sums in float64 together


@dataclass(frozen=True)
class Facts:
    """Properties of a dataset known to every rank before it is read; see :class:`psframe.datasets.base.Dataset`."""

    shape: list[int]
    dtype: str
    n_classes: int
    n_train: int
    n_test: int
    crop: list[int] | None
    flip: bool
    mean: list[float] | None
    std: list[float] | None

    @classmethod
    def of(cls, dataset: "Dataset") -> "Facts":
        """Return the facts of a dataset, as plain values to send to other ranks; UserError if it is invalid."""
        dataset_checks.check(dataset)
        return cls(
            shape=[int(n) for n in dataset.shape],
            dtype=str(dataset.dtype),
            n_classes=int(dataset.n_classes),
            n_train=int(dataset.train.n),
            n_test=int(dataset.test.n),
            crop=None if dataset.crop is None else [int(n) for n in dataset.crop],
            flip=bool(dataset.flip),
            mean=None if dataset.mean is None else [float(x) for x in dataset.mean],
            std=None if dataset.std is None else [float(x) for x in dataset.std],
        )

    @property
    def input_shape(self) -> tuple[int, ...]:
        """(C, H, W) or (C, T), as the network sees it."""
        return (self.shape[0], *self.crop) if self.crop else tuple(self.shape)

    @property
    def sample_bytes(self) -> int:
        """Bytes of a sample's image in a node's memory."""
        return _n_bytes(self.shape, self.dtype)

    @property
    def n_bytes(self) -> int:
        """Bytes of the dataset in a node's memory."""
        return sum(padded(_n_bytes(shape, dtype)) for shape, dtype in self._kinds().values())

    def _kinds(self) -> dict[str, tuple[list[int], str]]:
        """Return shape and dtype of each array in the node's memory, in memory order."""
        height = [1] if len(self.shape) == 2 else []
        sample = [self.shape[0], *height, *self.shape[1:]]
        return {
            "train_images": ([self.n_train, *sample], self.dtype),
            "test_images": ([self.n_test, *sample], self.dtype),
            "train_labels": ([self.n_train], "int64"),
            "test_labels": ([self.n_test], "int64"),
            "moments": ([2, self.shape[0]], "float64"),
        }

    def arrays(self, memory: np.ndarray) -> dict[str, np.ndarray]:
        """Return the arrays as views of ``memory``, uint8 (n_bytes,)."""
        views, offset = {}, 0
        for name, (shape, dtype) in self._kinds().items():
            views[name] = memory[offset : offset + _n_bytes(shape, dtype)].view(dtype).reshape(shape)
            offset += padded(_n_bytes(shape, dtype))
        return views

    def checksum(self, memory: np.ndarray) -> int:
        """Return a 64-bit checksum of the samples and labels in ``memory``, uint8 (n_bytes,).

        It excludes mean and deviation, which another CPU may round differently.
        """
        samples = memory[: self.n_bytes - padded(_n_bytes(*self._kinds()["moments"]))]
        return int(compiled.elementwise.checksum(samples.view(np.float32)))

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    def inputs(self, moments: np.ndarray) -> Inputs:
        """Return the description of a sample that a run keeps, with the ``moments`` (2, C) that normalize it."""
        mean, std = moments.tolist()
        return Inputs(self.shape, self.dtype, self.n_classes, self.crop, mean, std)


def _n_bytes(shape: list[int], dtype: str) -> int:
    return prod(shape) * np.dtype(dtype).itemsize


@dataclass(frozen=True)
class LoadedData:
    """Data of a node, shared by its ranks.

    Attributes
    ----------
    memory : ndarray of uint8, shape (facts.n_bytes,)
    arrays : dict of ndarray
        Views of that memory: ``train_images`` and ``test_images`` (n, C, H, W) as stored (H = 1 for sequences),
        ``train_labels`` and ``test_labels`` (n,) int64, ``moments`` (2, C) float64: mean and standard deviation per
        channel.
    checksum : int
        Result of :meth:`Facts.checksum` on the node's first rank; 0 elsewhere.
    """

    memory: np.ndarray
    arrays: Arrays
    checksum: int


def hold(cluster: Cluster, facts: Facts, dataset: "Dataset | None", places: Places) -> LoadedData:
    """Read the dataset once per node, into memory of all the node's ranks. All ranks must call.

    Parameters
    ----------
    dataset : Dataset or None
        On each node's first rank, which reads it in slices and checks every label; None elsewhere.

    Raises
    ------
    UserError
        On every rank: an unreadable file, a label out of range, too little memory, or different data on another node.
    """
    memory = cluster.run_on_all(lambda: _share(cluster, facts.n_bytes, places))
    arrays = facts.arrays(memory)
    cluster.run_on_nodes(lambda: _fill(facts, dataset, arrays) if dataset else None)
    checksum = facts.checksum(memory) if cluster.link.leads else 0
    consistency.check_data(cluster, checksum, arrays["moments"])
    return LoadedData(memory, arrays, checksum)


def _share(cluster: Cluster, n_bytes: int, places: Places) -> np.ndarray:
    policy = places.policies["data"]
    page_bytes = RESERVED_BYTES[policy.huge_pages]
    try:
        return cluster.link.share(n_bytes, page_bytes, lambda memory: places.bind("data", memory))
    except OSError as error:
        if error.errno != errno.ENOMEM and limits.met(error):
            raise  # a limit of this process has its own message; other causes are reported below
        if page_bytes:
            raise no_huge_pages(policy, n_bytes) from None
        raise no_memory_for_data(n_bytes, error.strerror or "") from None


def no_memory_for_data(n_bytes: int, why: str) -> UserError:
    return UserError(
        f"a node must have memory for the data, {n_bytes:,} bytes, got {available()} ({why}); set "
        "dataset.limit to fewer samples"
    )


@in_phase(READ)
def _fill(facts: Facts, dataset: "Dataset", arrays: dict[str, np.ndarray]) -> None:
    for name, split in (("train", dataset.train), ("test", dataset.test)):
        images, labels = arrays[f"{name}_images"], arrays[f"{name}_labels"]
        for lo, hi, x, y in _slices(split, facts, name):
            wrong = np.flatnonzero((y < 0) | (y >= facts.n_classes))
            if len(wrong):
                raise UserError(
                    f"labels must be 0 to {facts.n_classes - 1}, got {y[wrong[0]]} at sample {lo + wrong[0]} of the "
                    f"{name} split; mend the dataset's labels"
                )
            images[lo:hi] = x.reshape(images[lo:hi].shape)
            labels[lo:hi] = y
            _check_finite(images[lo:hi], lo, name)
    given = (facts.mean, facts.std)
    measured = moments(arrays["train_images"]) if None in given else given
    arrays["moments"][:] = [own if known is None else known for known, own in zip(given, measured, strict=True)]


def _check_finite(images: np.ndarray, lo: int, split: str) -> None:
    """Raise UserError if a sample has a non-finite value: the later divergence would blame the learning rate."""
    if images.dtype != np.float32 or compiled.elementwise.is_finite(images.reshape(-1)):
        return
    first = int(np.flatnonzero(~np.isfinite(images).reshape(len(images), -1).all(axis=1))[0])
    wrong = images[first][~np.isfinite(images[first])][0]
    raise UserError(
        f"samples must hold finite numbers, got {wrong} in sample {lo + first} of the {SPLITS[split]} split; mend "
        "the data, or leave that sample out"
    )


def _slices(split: "Split", facts: Facts, name: str) -> Iterator[tuple[int, int, np.ndarray, np.ndarray]]:
    rows = max(1, SLICE_BYTES // facts.sample_bytes)
    for lo in range(0, split.n, rows):
        RING.note(READ, lo)  # reading goes on, however long it takes in all
        hi = min(lo + rows, split.n)
        yield lo, hi, *dataset_checks.read(split, lo, hi, tuple(facts.shape), np.dtype(facts.dtype), name)


def moments(images: np.ndarray) -> np.ndarray:
    """Return mean and standard deviation per channel, float64 (2, C), of images (n, C, H, W); a deviation of 0 is 1."""
    rows = max(1, SLICE_BYTES // images[0].nbytes)
    total = np.zeros((2, images.shape[1]))
    for lo in range(0, len(images), rows):
        x = images[lo : lo + rows].astype(np.float64)
        total[0] += x.sum(axis=(0, 2, 3))
        total[1] += np.square(x, out=x).sum(axis=(0, 2, 3))
    mean, square = total / (images.size // images.shape[1])
    variance = square - mean**2
    is_constant = variance <= ROUNDING * square  # what is left of a difference of equal numbers is not a deviation
    return np.stack([mean, np.sqrt(np.where(is_constant, 1, variance))])
