"""The files of a folder that may come from elsewhere: :class:`Folder` follows no link, and opens regular files alone.

A run's folder may have been unpacked from an archive. A link in it would lead what is written to any file of the user,
and a pipe in a file's place would never end.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from psframe.config import untrusted

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Folder:
    """A folder that is held open, so that its files are reached from it and not by a path that could change.

    Every method raises OSError, with the file's path, where the file is a link, no regular file, or (to be written) one
    that has another name elsewhere.

    Parameters
    ----------
    path : Path
        Of the folder; its last part is no link.
    *inside : str
        Folders on the way from it to the one that is opened, none of them a link.
    make : bool
        Whether what is missing of ``inside`` is made.
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
        """Open a folder that the user has named: its own path may lead over links."""
        return cls(Path(path).resolve())

    def enter(self, name: str, make: bool = False) -> None:
        """Go on to a folder in it, which is no link; ``make`` it where it is missing."""
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
        """Let go of the folder; files that were opened stay open."""
        os.close(self.fd)

    @contextmanager
    def _named(self, name: str = "") -> Iterator[None]:
        """Let an OSError name the path, and say of a link that it is one."""
        try:
            yield
        except OSError as error:
            path = str(self.path / name)
            link = error.errno in (errno.ELOOP, errno.ENOTDIR) and os.path.islink(path)
            why = "it is a link, and none is followed here" if link else error.strerror
            raise OSError(errno.ELOOP if link else error.errno, why, path) from None

    def names(self) -> list[str]:
        """Return the names of what it holds, in order."""
        return sorted(os.listdir(self.fd))

    def holds(self, name: str) -> bool:
        """Whether there is anything of that name, a link that leads nowhere, too."""
        try:
            os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def open(self, name: str, mode: str = "rb") -> Any:
        """Open a file as the built-in ``open`` does; text is UTF-8."""
        text = {} if "b" in mode else {"encoding": "utf-8", "newline": ""}
        return open(name, mode, opener=self.open_fd, **text)  # type: ignore[call-overload]

    def open_fd(self, name: str, flags: int) -> int:
        """Return a descriptor of a file; one that is made can be read by everybody, as far as the umask lets it."""

        def judge(found: os.stat_result) -> None:
            if stat.S_ISLNK(found.st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            if flags & (os.O_WRONLY | os.O_RDWR) and stat.S_ISREG(found.st_mode) and found.st_nlink > 1:
                raise OSError(errno.EMLINK, "it has another name elsewhere (a hard link)")

        with self._named(name):
            return untrusted.open_fd(name, flags | os.O_NOFOLLOW, self.fd, judge)

    def make_fd(self, name: str) -> int:
        """Return a descriptor, to write and read, of a file that was made anew; one of that name is removed before."""
        self.remove(name)
        return self.open_fd(name, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def remove(self, name: str) -> None:
        """Remove a file, or the link or pipe of that name, if there is one."""
        with self._named(name), suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.fd)

    def replace(self, old: str, new: str) -> None:
        """Give a file another name; what had it is gone, and where that was a link, the link."""
        with self._named(new):
            os.replace(old, new, src_dir_fd=self.fd, dst_dir_fd=self.fd)

    def sync(self) -> None:
        """Bring the names in it to the disk."""
        with self._named():
            os.fsync(self.fd)


@contextmanager
def chosen_file(path: str | Path, mode: str = "rb") -> Iterator[Any]:
    """Open a file of a folder that the user has named, as :meth:`Folder.open` does."""
    path = Path(path)
    with Folder.chosen(path.parent) as folder, folder.open(path.name, mode) as file:
        yield file


def is_stream(path: str | Path) -> bool:
    """Whether a file that the user has named to write to is a device, a pipe, or a descriptor of this process."""
    given = _given(path)
    try:
        return _flows(os.lstat(path)) if given is None else bool(os.fstat(given))
    except (OSError, ValueError):
        return False


def _flows(found: os.stat_result) -> bool:
    own = found.st_uid == os.geteuid()  # a pipe that another user has left there may never be read
    return stat.S_ISCHR(found.st_mode) or (stat.S_ISFIFO(found.st_mode) and own)


def _given(path: str | Path) -> int | None:
    """Return the descriptor that has a name in /dev, None where none has: of a shell's ``>(command)`` /dev/fd/63, say.

    The names are links, which nobody can have planted there.
    """
    found = re.fullmatch(r"/dev/(?:fd/([0-9]{1,6})|std(out|err))", os.fspath(path))
    return int(found[1] or {"out": 1, "err": 2}[found[2]]) if found else None


@contextmanager
def chosen_output(path: str | Path) -> Iterator[Any]:
    """Open a file that the user has named, to write text to it: a stream as it is, and anything else emptied."""
    if not is_stream(path):
        with chosen_file(path, "w") as file:
            yield file
        return
    given = _given(path)
    fd = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_NOCTTY) if given is None else os.dup(given)
    with open(fd, "w", encoding="utf-8", newline="") as file:
        if given is None and not _flows(os.fstat(fd)):  # another one stands there since
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        yield file
