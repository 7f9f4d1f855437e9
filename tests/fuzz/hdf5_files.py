"""Bytes as a program that builds an HDF5 file: sound to the library, and as odd as the format allows."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np

MAX_PROGRAM = 200  # bytes
TYPES: Sequence[Any] = ("u1", "i8", "f4", "f8", "u8", "f2", "?", "S3", "c8", h5py.string_dtype(), h5py.ref_dtype)
SIZES = (0, 1, 2, 3, 5, 10, 42, 1000, 2**20, 2**31, 2**32 + 1, 2**40, 2**62)
CHUNKS = (1, 3, 10, 1000, 2**20)
FILTERS: Sequence[dict[str, Any]] = ({}, {"compression": "gzip"}, {"compression": "lzf"}, {"scaleoffset": 0})
ATTRIBUTES: Sequence[Any] = (3, 2**63, -1, "three", np.zeros(9), np.float32(np.nan), h5py.Empty("i4"), b"3", 10**6 + 1)


def build(
    path: Path, program: bytes, arrays: Mapping[str, np.ndarray], attributes: Mapping[str, Any], userblock: int = 0
) -> None:
    """Write a file with ``arrays`` and ``attributes``, some of which ``program`` makes others.

    Every four bytes are one step: what to make, in which place, and of what size; what the library refuses is left out.
    """
    at, names, keys = iter(program[:MAX_PROGRAM]), list(arrays), list(attributes)
    with h5py.File(path, "w", userblock_size=userblock) as file:
        file.attrs.update(attributes)
        for name, values in arrays.items():
            file[name] = values
        for what in at:
            kind, size, more = (next(at, 0) for _ in range(3))
            with suppress(ValueError, TypeError, OSError, RuntimeError, KeyError, OverflowError, NotImplementedError):
                if what % 8:
                    _put(file, what % 8, names[kind % len(names)], size, more)
                else:
                    file.attrs[keys[kind % len(keys)]] = ATTRIBUTES[size % len(ATTRIBUTES)]


def _put(file: h5py.File, what: int, name: str, size: int, more: int) -> None:
    if name in file:
        del file[name]
    if what == 1:
        file[name] = h5py.ExternalLink("/dev/zero", "/x")
    elif what == 2:
        file[name] = h5py.SoftLink(f"/{('labels', name, 'none')[size % 3]}")
    elif what == 3:
        virtual = h5py.VirtualLayout((10,), "i8")
        virtual[:] = h5py.VirtualSource("other.h5", "x", (10,))
        file.create_virtual_dataset(name, virtual)
    elif what == 4:
        file.create_dataset(name, (10,), "i8", external=[("/dev/zero", 0, 80)])
    elif what == 5:
        file.create_group(name)
    else:
        sizes = iter((size, more, size >> 4, more >> 4))
        rank = (1, 4, 3, 0, 2)[more % 5]
        _dataset(file, name, tuple(SIZES[n % len(SIZES)] for n, _ in zip(sizes, range(rank), strict=False)), size, more)


def _dataset(file: h5py.File, name: str, shape: tuple[int, ...], size: int, more: int) -> None:
    filters = FILTERS[size % len(FILTERS)] if shape else {}
    chunks = tuple(_chunk(shape, more)) if filters or more & 1 else None
    made = file.create_dataset(name, shape, TYPES[(size + more) % len(TYPES)], chunks=chunks or None, **filters)
    if made.dtype.kind in "iuf" and 0 < made.size <= 1 << 16:
        made[...] = np.arange(made.size).reshape(shape) % (3 + (more & 0xF0))


def _chunk(shape: tuple[int, ...], more: int) -> Iterator[int]:
    return (max(1, min(n, CHUNKS[(more >> i) % len(CHUNKS)])) for i, n in enumerate(shape))
