"""Access to untrusted files (:func:`open_fd`, :func:`content`): regular files only, up to a given size."""

import errno
import json
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from psframe.errors import UserError

CONFIG_BYTES = 1 << 20  # largest config
HOME = re.compile(r"~[\w.-]*(/|\Z)", re.ASCII)


def opened(path: str | Path) -> BinaryIO:
    """Open a file for reading in binary, as :func:`open_fd` does."""
    return open(path, "rb", opener=open_fd)


def open_fd(
    path: str | Path,
    flags: int,
    dir_fd: int | None = None,
    also: Callable[[os.stat_result], None] = lambda found: None,
) -> int:
    """Open a file and return its descriptor; OSError if it is not regular: a pipe may block, a device never end.

    ``also`` may raise for other defects, before the file is changed.
    """

    def check(found: os.stat_result) -> None:
        also(found)
        if stat.S_ISDIR(found.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))

    with suppress(FileNotFoundError):  # O_CREAT may make it
        # check before opening, because opening a device may have side effects
        check(os.stat(path, dir_fd=dir_fd, follow_symlinks=not flags & os.O_NOFOLLOW))
    fd = os.open(path, flags & ~os.O_TRUNC | os.O_NONBLOCK | os.O_CLOEXEC, 0o666, dir_fd=dir_fd)
    try:
        check(os.fstat(fd))
        if flags & os.O_TRUNC:
            os.ftruncate(fd, 0)
    except BaseException:
        os.close(fd)
        raise
    return fd


def content(path: str | Path, most: int) -> bytes:
    """Return a file's content; OSError if it is not a regular file, or holds more than ``most`` bytes."""
    with opened(path) as file:
        return all_of(file, most, path)


def all_of(file: BinaryIO, most: int, path: str | Path) -> bytes:
    """Return the rest of an open file; OSError, naming ``path``, if it exceeds ``most`` bytes."""
    data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it holds more than {most:,} bytes", os.fspath(path))
    return data


def text(path: str | Path, most: int, errors: str = "strict") -> str:
    """Return a file's UTF-8 text, with the checks of :func:`content`; UnicodeDecodeError if it is not UTF-8."""
    return content(path, most).decode("utf-8", errors)


def of_json(said: str | bytes) -> Any:
    """Parse JSON; ValueError if it is malformed or nested too deep."""
    try:
        return json.loads(said)
    except RecursionError:
        raise ValueError("nested too deep") from None


def at_home(value: Any) -> Any:
    """Expand ``~/`` and ``~name/`` at the start of all strings in ``value``, also in nested dicts and lists.

    UserError if there is no such user.
    """
    if isinstance(value, dict):
        return {key: at_home(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [at_home(inner) for inner in value]
    if not isinstance(value, str) or not HOME.match(value):
        return value
    path = os.path.expanduser(value)
    if path == value:
        raise UserError(f"a path that begins with ~ must be in a user's home, got {value!r}, of none; write it in full")
    return path
