"""Durable files, synced and read back after writing: small ones (:func:`put`), and sealed HDF5 (:func:`write`).

The seal of an HDF5 file is in its user block, the first 512 bytes: a line with the SHA-256 of all that follows. It is
verified before the HDF5 library opens the file, because on damaged files the library may crash or hang.
"""

import errno
import hashlib
import io
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from psframe.record.folder import Folder

SEAL_BYTES = 512  # the smallest HDF5 user block
SEAL = "psframe checkpoint 2, sha256 {}\n"
PART_BYTES = 1 << 20  # read at a time
READS_BACK = "it reads back otherwise than it was written"
#: errors that a damaged or malicious file raises here and in its readers
WRONG = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, OverflowError, MemoryError)

At = Callable[[str], None]  #: called with each point at which the writer may end


def anywhere(point: str) -> None:
    """Do nothing at any point."""


class _File(io.RawIOBase):
    """File object for h5py that stores its first write error: h5py could never close the file if this raised it."""

    def __init__(self, fd: int):
        self.fd, self.at = fd, 0
        self.error: OSError | None = None

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + (0, self.at, os.fstat(self.fd).st_size)[whence]
        return self.at

    def tell(self) -> int:
        return self.at

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = os.pread(self.fd, len(buffer), self.at)
        buffer[: len(data)] = data
        self.at += len(data)
        return len(data)

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        end = self.at + len(data)
        try:
            while self.at < end and not self.error:
                self.at += os.pwrite(self.fd, data[len(data) - (end - self.at) :], self.at)
        except OSError as error:
            self.error = error
        self.at = end
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        try:
            os.ftruncate(self.fd, self.at if size is None else size)
        except OSError as error:
            self.error = self.error or error
        return self.at if size is None else size


def put(path: Path, text: str, at: At = anywhere, name: str = "") -> None:
    """Write a small file atomically and durably: at any time the old or the new content is there in full.

    OSError if that fails. ``name`` is the prefix of the points' names.
    """
    data, temporary = text.encode(), f"{path.name}.part"
    with Folder(path.parent) as folder:
        with open(folder.make_fd(temporary), "r+b") as file:
            at(f"{name}-write")
            file.write(data)
            file.flush()
            at(f"{name}-sync")
            os.fsync(file.fileno())
            file.seek(0)
            if file.read() != data:
                raise OSError(errno.EIO, READS_BACK, str(path))
        at(f"{name}-rename")
        folder.replace(temporary, path.name)
        at(f"{name}-sync-folder")
        folder.sync()


def write(path: Path, numbers: Mapping[str, int], arrays: Mapping[str, np.ndarray], at: At = anywhere) -> None:
    """Write a sealed HDF5 file of attributes and arrays, which is durable on return.

    Raises
    ------
    OSError
        The file cannot be written, or reads back with other content.
    """
    import h5py  # rank 0 alone needs it

    with Folder(path.parent) as folder:
        fd = folder.make_fd(path.name)
    try:
        target = _File(fd)
        with h5py.File(target, "w", userblock_size=SEAL_BYTES) as file:
            file.attrs.update(numbers)
            at("write")
            for name, array in arrays.items():
                file[name] = array
        if target.error:
            raise target.error
        seal = _seal(fd)
        at("seal")
        os.pwrite(fd, seal, 0)
        at("sync")
        os.fsync(fd)
        at("verify")
        with suppress(OSError):  # or what is read back may never have left memory
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        if os.pread(fd, SEAL_BYTES, 0) != seal or _seal(fd) != seal:
            raise OSError(errno.EIO, READS_BACK, str(path))
    finally:
        os.close(fd)


def check(file: BinaryIO) -> None:
    """Verify a file's seal; ValueError if it is missing or does not match the content."""
    head = os.pread(file.fileno(), SEAL_BYTES, 0)
    if not head.startswith(SEAL[:19].encode()):
        raise ValueError("none of psframe's")
    if not head.startswith(SEAL[:21].encode()):
        raise ValueError("of another version of psframe, or its first line is damaged")
    if head != _seal(file.fileno()):
        raise ValueError("its checksum differs")


def count(file: Any, name: str) -> int:
    """Return an integer attribute of a file; ValueError if it is not a scalar integer >= 0."""
    attr_id = file.attrs.get_id(name)
    if attr_id.shape != () or attr_id.dtype.kind != "i" or file.attrs[name] < 0:
        raise ValueError(f"its {name} is no count")
    return int(file.attrs[name])


def array(file: Any, name: str, dtype: type, length: int | None = None) -> np.ndarray:
    """Return an array of a file, no larger than the file, since chunked and external data are refused.

    ValueError if it is missing, incomplete, of another dtype, or its last axis has another length.
    """
    import h5py

    item: Any = file[name] if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
    plain = isinstance(item, h5py.Dataset) and item.chunks is None and not item.external and not item.is_virtual
    if not plain or item.dtype != dtype or length not in (None, *item.shape[-1:]):
        raise ValueError(f"its {name} are no {np.dtype(dtype)} of the model's size")
    if item.nbytes != item.id.get_storage_size():
        raise ValueError(f"its {name} are not all there")
    return np.asarray(item[()])


def _seal(fd: int) -> bytes:
    """Return the seal of a file's content after its first SEAL_BYTES bytes, padded to that length."""
    digest, at = hashlib.sha256(), SEAL_BYTES
    while part := os.pread(fd, PART_BYTES, at):
        digest.update(part)
        at += len(part)
    return SEAL.format(digest.hexdigest()).encode().ljust(SEAL_BYTES, b"\0")
