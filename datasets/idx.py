"""IDX files, the format of MNIST (:func:`idx`): two zero bytes, type, rank, sizes (big-endian uint32), values."""

import gzip
import zlib
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import IO

import numpy as np

from psframe.config import untrusted
from psframe.config.registry import PositiveInt
from psframe.datasets import files
from psframe.datasets.base import Dataset, Split
from psframe.errors import UserError

UNSIGNED_BYTE = 8
DEFLATE_MOST = 1032  # maximum bytes unpacked per byte of a gzip file (zlib's technical notes)
MAX_UNPACKED = 1 << 30  # bytes of a .gz, which is read completely
RANKS = {"images": (3, 4), "labels": (1,)}


@dataclass(frozen=True)
class _Idx:
    """File with a valid header: ``sizes`` = (n, ...)."""

    file: Path
    sizes: tuple[int, ...]

    @property
    def start(self) -> int:
        return 4 + 4 * len(self.sizes)

    @property
    def n_bytes(self) -> int:
        return self.start + prod(self.sizes)

    def read(self, lo: int, hi: int) -> np.ndarray:
        """Return entries lo to hi - 1 along the first axis, uint8 (hi - lo, *sizes[1:])."""
        size = prod(self.sizes[1:])
        with _reading(self.file), _open(self.file) as f:
            f.seek(self.start + lo * size)
            values = f.read((hi - lo) * size)
            # gzip compares the checksum only at the end of the file
            more = f.read(1) if hi == self.sizes[0] else b""
        if more or len(values) != (hi - lo) * size:
            got = "more" if more else self.start + lo * size + len(values)
            raise _wrong_length(self, got)
        return np.frombuffer(values, np.uint8).reshape(hi - lo, *self.sizes[1:])


def idx(*, path: str, limit: PositiveInt | None = None) -> Dataset:
    """Return the dataset in a folder of IDX files.

    Parameters
    ----------
    path : str
        Folder with train-images-idx3-ubyte (n, H, W) or (n, C, H, W), train-labels-idx1-ubyte (n,), and
        t10k-images-idx3-ubyte, t10k-labels-idx1-ubyte: uint8, plain or .gz.
    limit : int, optional
        Maximum number of samples of each split.

    Returns
    -------
    Dataset
        uint8 (C, H, W), C = 1 unless given; classes 0 to the greatest label.

    Raises
    ------
    UserError
        A file is missing, damaged or truncated, or the sizes of the files do not match. ``read`` raises for damage
        after the header of a .gz file.
    """
    root = files.folder(path, "IDX files as train-images-idx3-ubyte")
    images = {split: _header(*_find(root, split, "images")) for split in ("train", "t10k")}
    labels = {split: _labels(_header(*_find(root, split, "labels")), images[split]) for split in images}
    n_classes = files.check_labels(labels, root)
    if images["train"].sizes[1:] != images["t10k"].sizes[1:]:
        raise UserError(
            f"training and test images must have one shape, got {images['train'].sizes[1:]} and "
            f"{images['t10k'].sizes[1:]} in {root}; give files that belong together"
        )
    sizes = images["train"].sizes[1:]
    shape = sizes if len(sizes) == 3 else (1, *sizes)
    train, test = (_split(images[split], labels[split], shape, limit) for split in images)
    return Dataset(shape, "uint8", n_classes, train, test)


def _find(root: Path, split: str, kind: str) -> tuple[Path, tuple[int, ...]]:
    stem = f"{split}-{kind}"
    names = [f"{stem}{dot}idx{rank}-ubyte{gz}" for rank in RANKS[kind] for dot in "-." for gz in ("", ".gz")]
    for name in names:
        if (root / name).is_file():
            return root / name, RANKS[kind]
    raise UserError(f"{root} must hold {names[0]} (plain or .gz), got none; add it, or correct dataset.path")


def _open(file: Path) -> IO[bytes]:
    return gzip.open(file) if file.suffix == ".gz" else untrusted.opened(file)  # type: ignore[return-value]


def _reading(file: Path) -> AbstractContextManager[None]:
    return files.reading(file, "a sound IDX file", EOFError, zlib.error)


def _wrong_length(header: _Idx, got: object) -> UserError:
    return UserError(
        f"{header.file} must hold {header.n_bytes} bytes for the sizes {header.sizes} of its header, got {got}; "
        "fetch it again"
    )


def _header(file: Path, ranks: tuple[int, ...]) -> _Idx:
    with _reading(file), _open(file) as f:
        magic = f.read(4)
        if len(magic) < 4 or magic[:3] != bytes([0, 0, UNSIGNED_BYTE]) or magic[3] not in ranks:
            raise UserError(
                f"{file} must begin with the bytes 0, 0, 8 (uint8) and the rank ({' or '.join(map(str, ranks))}), "
                f"got {list(magic)}; give an IDX file of unsigned bytes"
            )
        sizes = f.read(4 * magic[3])
    header = _Idx(file, tuple(int(n) for n in np.frombuffer(sizes[: len(sizes) // 4 * 4], ">u4")))
    n_bytes = file.stat().st_size
    if len(header.sizes) < magic[3] or min(header.sizes) < 1:
        raise UserError(f"{file} must have {magic[3]} sizes of at least 1, got {header.sizes}; fetch it again")
    # before any allocation of the size that the header claims
    packed = file.suffix == ".gz"
    if header.n_bytes > n_bytes * DEFLATE_MOST if packed else header.n_bytes != n_bytes:
        raise _wrong_length(header, n_bytes)
    if packed and header.n_bytes > MAX_UNPACKED:
        raise UserError(f"{file} may unpack to {MAX_UNPACKED:,} bytes, got {header.n_bytes:,}; gunzip it")
    return header


def _labels(header: _Idx, images: _Idx) -> np.ndarray:
    if header.sizes[0] != images.sizes[0]:
        raise UserError(
            f"{header.file} must have a label an image, got {header.sizes[0]} labels for {images.sizes[0]} images in "
            f"{images.file.name}; give files that belong together"
        )
    return header.read(0, header.sizes[0])


def _split(images: _Idx, labels: np.ndarray, shape: tuple[int, ...], limit: int | None) -> Split:
    n = min(limit or len(labels), len(labels))
    whole = cache(lambda: images.read(0, n))

    def read(lo: int, hi: int) -> tuple[np.ndarray, np.ndarray]:
        # gzip has no random access: the file is read once
        values = whole()[lo:hi] if images.file.suffix == ".gz" else images.read(lo, hi)
        return values.reshape(-1, *shape), labels[lo:hi]

    return Split(n, read)
