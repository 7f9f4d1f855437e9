"""Access to an untrusted folder: :class:`Folder` follows no link, and opens regular files only.

A run's folder may have been unpacked from an archive. A link in it could redirect writes to any file of the user, and
a pipe in place of a file would block forever.
"""

import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from psframe.config import untrusted
from psframe.errors import UserError

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Folder:
    """Open folder: its files are reached through its descriptor, not by a path that could change.

    Every method raises OSError, with the file's path, if the file is a link, not a regular file, or (for writing) has
    a hard link elsewhere.

    Parameters
    ----------
    path : Path
        The folder; its last part must not be a link.
    *inside : str
        Names of nested folders down to the one to open, none of them a link.
    make : bool
        True to create missing folders of ``inside``.
    """

    def __init__(self, path: Path, *inside: str, make: bool = False):
        self.path = Path(path)
        with self._named():
            self.fd = os.open(self.path, _FOLDER)
        try:
            for name in inside:
                self.enter(name, make)
        except BaseException:
            self.close()
            raise

    @classmethod
    def chosen(cls, path: Path) -> "Folder":
        """Open a folder named by the user, the path of which may contain links."""
        return cls(Path(path).resolve())

    def enter(self, name: str, make: bool = False) -> None:
        """Move on to a subfolder, which must not be a link; ``make`` creates it if missing."""
        above, self.path = self.fd, self.path / name
        with self._named():
            if make:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=above)
            self.fd = os.open(name, _FOLDER, dir_fd=above)
        os.close(above)

    def __enter__(self) -> "Folder":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the folder; its open files stay open."""
        os.close(self.fd)

    @contextmanager
    def _named(self, name: str = "") -> Iterator[None]:
        """Make an OSError name the path, and report a link as such."""
        try:
            yield
        except OSError as error:
            path = str(self.path / name)
            link = error.errno in (errno.ELOOP, errno.ENOTDIR) and os.path.islink(path)
            why = "it is a link, and none is followed here" if link else error.strerror
            raise OSError(errno.ELOOP if link else error.errno, why, path) from None

    def names(self) -> list[str]:
        """Return the names of its entries, sorted."""
        return sorted(os.listdir(self.fd))

    def holds(self, name: str) -> bool:
        """Return True if there is an entry of that name, also a dangling link."""
        try:
            os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def open(self, name: str, mode: str = "rb") -> Any:
        """Open a file as the built-in ``open`` does; text is UTF-8 with newlines kept as they are."""
        text = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
        return open(name, mode, opener=self.open_fd, **text)  # type: ignore[call-overload]

    def open_fd(self, name: str, flags: int) -> int:
        """Open a file and return its descriptor; a new file gets mode 0o666 less the umask."""

        def check(found: os.stat_result) -> None:
            if stat.S_ISLNK(found.st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            if flags & (os.O_WRONLY | os.O_RDWR) and stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
                raise OSError(errno.EMLINK, "it has another name elsewhere (a hard link)")

        with self._named(name):
            return untrusted.open_fd(name, flags | os.O_NOFOLLOW, self.fd, check)

    def make_fd(self, name: str) -> int:
        """Create a file, after removing one of that name, and return a descriptor for reading and writing."""
        self.remove(name)
        return self.open_fd(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def remove(self, name: str) -> None:
        """Remove the file, link or pipe of that name, if any."""
        with self._named(name), suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)

    def replace(self, old: str, new: str) -> None:
        """Rename a file over ``new``; a link of that name is replaced itself, not followed."""
        with self._named(new):
            os.replace(old, new, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    @contextmanager
    def replaced(self, name: str) -> Iterator[Any]:
        """Open a text file that takes the place of ``name``, and its permissions, unless the writer raises."""
        part, mode = f"{name}.part", None
        if self.holds(name):
            old = self.open_fd(name, os.O_WRONLY)
            mode = stat.S_IMODE(os.fstat(old).st_mode)
            os.close(old)
        fd = self.make_fd(part)
        try:
            with open(fd, "w", encoding="utf-8", newline="") as file:
                if mode is not None:
                    os.fchmod(fd, mode)
                yield file
            self.replace(part, name)
        except BaseException:
            self.remove(part)
            raise

    def sync(self) -> None:
        """Sync the folder's entries to disk."""
        with self._named():
            os.fsync(self.fd)


@contextmanager
def chosen_file(path: str | Path, mode: str = "rb") -> Iterator[Any]:
    """Open a file in a folder named by the user, as :meth:`Folder.open` does."""
    path = Path(path)
    with Folder.chosen(path.parent) as folder, folder.open(path.name, mode) as file:
        yield file


def is_stream(path: str | Path) -> bool:
    """Return True if an output file named by the user is a device, a pipe, or a descriptor of this process."""
    fd = _given(path)
    try:
        return _flows(os.lstat(path)) if fd is None else bool(os.fstat(fd))
    except (OSError, ValueError):
        return False


def _flows(found: os.stat_result) -> bool:
    is_own = found.st_uid == os.geteuid()  # another user's pipe may never be read
    return stat.S_ISCHR(found.st_mode) or (stat.S_ISFIFO(found.st_mode) and is_own)


def _given(path: str | Path) -> int | None:
    """Return the descriptor with that name in /dev, e.g. 63 of a shell's ``>(command)``, /dev/fd/63; else None.

    These names are links, but no user can have planted them.
    """
    match = re.fullmatch(r"/dev/(?:fd/([0-9]{1,6})|std(out|err))", os.fspath(path))
    return int(match[1] or {"out": 1, "err": 2}[match[2]]) if match else None


@contextmanager
def chosen_output(path: str | Path) -> Iterator[Any]:
    """Open an output file named by the user, for text: a stream as it is, any other file to be replaced once written.

    A file of that name stays as it is where the writer raises.
    """
    if not is_stream(path):
        path = Path(path)
        with Folder.chosen(path.parent) as folder, folder.replaced(path.name) as file:
            yield file
        return
    given_fd = _given(path)
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NOCTTY) if given_fd is None else os.dup(given_fd)
    with open(fd, "w", encoding="utf-8", newline="") as file:
        if given_fd is None and not _flows(os.fstat(fd)):  # replaced since is_stream
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        yield file


def refuse_inputs(out: str, inputs: Iterable[str]) -> None:
    """Raise UserError if an output file named by the user is one of the files that are read."""
    for name in inputs:
        if os.path.exists(out) and os.path.exists(name) and os.path.samefile(out, name):
            raise UserError(f"--out must be another file than those that are read, got {out!r} for both; give another")
