"""CIFAR-10 (Krizhevsky 2009; :func:`cifar10`), binary or Python version; the latter is read without unpickling."""

import pickletools
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from psframe.config import untrusted
from psframe.config.registry import PositiveInt
from psframe.datasets import files
from psframe.datasets.base import Dataset, Split, held
from psframe.errors import UserError

SHAPE = (3, 32, 32)
IMAGE_BYTES = 3 * 32 * 32
MAX_PICKLE = 256 << 20  # bytes of a batch; CIFAR-10's are 31 MB
TRAIN = [f"data_batch_{i}" for i in range(1, 6)]
STRINGS = (
    "STRING",
    "BINSTRING",
    "SHORT_BINSTRING",
    "UNICODE",
    "BINUNICODE",
    "SHORT_BINUNICODE",
    "BINBYTES",
    "SHORT_BINBYTES",
)
INTEGERS = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1")
_Batch = tuple[np.ndarray, np.ndarray]  # images uint8 (n, 3, 32, 32), labels (n,)


def cifar10(*, path: str, limit: PositiveInt | None = None) -> Dataset:
    """Return CIFAR-10: uint8 (3, 32, 32), 10 classes.

    Parameters
    ----------
    path : str
        Folder with data_batch_1.bin to data_batch_5.bin and test_batch.bin (binary version) or the same names without
        ``.bin`` (python version), or the folder above it.
    limit : int, optional
        Maximum number of samples of each split.

    Raises
    ------
    UserError
        A file is missing, truncated or not a CIFAR-10 file, or a label is above 9.
    """
    root = files.folder(path, "data_batch_1.bin or data_batch_1")
    root = next((d for d in (root / "cifar-10-batches-bin", root / "cifar-10-batches-py") if d.is_dir()), root)
    suffix = ".bin" if any(root.glob("*.bin")) else ""
    names = [f"{name}{suffix}" for name in (*TRAIN, "test_batch")]
    missing = [name for name in names if not (root / name).is_file()]
    if missing:
        raise UserError(
            f"{root} must hold {names[0]} to {names[4]} and {names[5]}, got no {', '.join(missing)}; "
            "unpack the whole archive, or correct dataset.path"
        )
    batches = []
    for name in names:
        images, labels = (_binary if suffix else _python)(root / name)
        files.check_labels({"whole": labels}, root / name, n_classes=10)
        batches.append(held(images, labels))
    return Dataset(SHAPE, "uint8", 10, _joined(batches[:-1], limit), _joined(batches[-1:], limit))


def _joined(parts: list[Split], limit: int | None) -> Split:
    starts = [sum(part.n for part in parts[:i]) for i in range(len(parts))]

    def read(lo: int, hi: int) -> _Batch:
        pieces = [
            part.read(max(lo - start, 0), min(hi - start, part.n))
            for part, start in zip(parts, starts, strict=True)
            if lo < start + part.n and start < hi
        ]
        images, labels = zip(*pieces, strict=True)
        return np.concatenate(images), np.concatenate(labels)

    n = sum(part.n for part in parts)
    return Split(min(n, limit or n), read)


def _binary(file: Path) -> _Batch:
    """Map a file of records: one byte of label, then 3,072 bytes of image."""
    size = file.stat().st_size
    if size == 0 or size % (1 + IMAGE_BYTES):
        raise UserError(
            f"{file} must hold a multiple of {1 + IMAGE_BYTES} bytes, got {size}; it is truncated or not CIFAR-10's: "
            "fetch it again"
        )
    with files.reading(file, "a CIFAR-10 batch"):
        records = np.memmap(file, np.uint8, "r").reshape(-1, 1 + IMAGE_BYTES)
    return records[:, 1:].reshape(-1, *SHAPE), records[:, 0].copy()


def _python(file: Path) -> _Batch:
    """Read images and labels from the opcodes of a pickle without executing any."""
    with files.reading(file, "a pickled CIFAR-10 batch", ValueError, OverflowError, IndexError):
        data, found = _walk(untrusted.content(file, MAX_PICKLE))
        labels = np.array(found, np.int64)
    if not len(labels) or len(data) != len(labels) * IMAGE_BYTES:
        raise UserError(
            f"{file} must hold 'data', {IMAGE_BYTES} uint8 values in C order for each of its 'labels', got {len(data)} "
            f"values for {len(labels)} labels; fetch CIFAR-10's python version again"
        )
    return np.frombuffer(data, np.uint8).reshape(-1, *SHAPE), labels


def _walk(pickled: bytes) -> tuple[bytes, list[int]]:
    """Return the bytes after the key ``data`` and the integers after ``labels``.

    Python 2 wrote plain bytes; Python 3, under protocol 2, writes them as text, followed by the word ``latin1``.
    """
    data, key, c_order = b"", "", False
    labels: list[int] = []
    opcodes: Iterable[tuple[pickletools.OpcodeInfo, Any, int | None]] = pickletools.genops(pickled)
    for opcode, arg, _ in opcodes:
        if opcode.name in STRINGS:
            text = arg.decode("latin-1") if isinstance(arg, bytes) else arg
            if key == "data" and c_order and len(text) >= IMAGE_BYTES:
                data, key = text.encode("latin-1"), ""
            elif key != "data" and text != "latin1":
                key = text
        elif opcode.name in INTEGERS and key == "labels":
            labels.append(arg)
        elif opcode.name in ("NEWTRUE", "NEWFALSE"):
            c_order = opcode.name == "NEWFALSE"  # last flag before an array's bytes: True for Fortran order
    return data, labels
