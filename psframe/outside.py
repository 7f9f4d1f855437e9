"""Files whose content nobody vouches for: regular ones alone, and no more of them than is said."""

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO

CONFIG_BYTES = 1 << 20  # most of a config


def opened(path: str | Path) -> BinaryIO:
    """Return a file open for reading; OSError where it is no regular file: a pipe may block, and a device never end."""
    _check(path, os.stat(path))  # to open a device may do something
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _check(path, os.fstat(fd))
        return open(fd, "rb")
    except BaseException:
        os.close(fd)
        raise


def _check(path: str | Path, found: os.stat_result) -> None:
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))


def content(path: str | Path, most: int) -> bytes:
    """Return what a file holds; OSError where it is no regular file, or holds more than ``most`` bytes."""
    with opened(path) as file:
        found = file.read(most + 1)
    if len(found) > most:
        raise OSError(errno.EFBIG, f"it holds more than {most:,} bytes", os.fspath(path))
    return found


def text(path: str | Path, most: int, errors: str = "strict") -> str:
    """Return a file's UTF-8 text, as :func:`content` does; UnicodeDecodeError where it is none."""
    return content(path, most).decode("utf-8", errors)


def of_json(said: str | bytes) -> Any:
    """Return what JSON says; ValueError where it is none, also where it is nested too deep to be read."""
    try:
        return json.loads(said)
    except RecursionError:
        raise ValueError("nested too deep") from None
