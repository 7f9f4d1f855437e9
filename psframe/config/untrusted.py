"""Files whose content nobody vouches for: regular ones alone, and no more of them than is said."""

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

CONFIG_BYTES = 1 << 20  # most of a config
HOME = re.compile(r"~[\w.-]*(/|$)", re.ASCII)


def opened(path: str | Path) -> BinaryIO:
    """Return a file open for reading, as :func:`open_fd` does."""
    return open(path, "rb", opener=open_fd)


def open_fd(
    path: str | Path,
    flags: int,
    dir_fd: int | None = None,
    judge: Callable[[os.stat_result], None] = lambda found: None,
) -> int:
    """Return a descriptor of a file; OSError where it is no regular one: a pipe may block, and a device never end.

    ``judge`` may raise for what else is wrong with it, before it is changed.
    """

    def check(found: os.stat_result) -> None:
        judge(found)
        if stat.S_ISDIR(found.st_mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", os.fspath(path))

    with suppress(FileNotFoundError):  # which may be made
        # to open a device may do something
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
    """Return what a file holds; OSError where it is no regular file, or holds more than ``most`` bytes."""
    with opened(path) as file:
        return all_of(file, most, path)


def all_of(file: BinaryIO, most: int, path: str | Path) -> bytes:
    """Return what an open file holds; OSError, of ``path``, where it is more than ``most`` bytes."""
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


def at_home(value: Any) -> Any:
    """Return a value in which texts that begin like a home directory, ``~/`` or ``~name/``, begin with that.

    UserError where there is no such user.
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
