"""Journal of a search (:class:`Journal`): every request and its reply, from which a search that broke off goes on.

A search is the same for the same replies. So it begins again from the start, and is answered from the journal as far
as that reaches.
"""

import fcntl
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any, TextIO

import msgspec

from psframe.cluster.parser import no_folder
from psframe.config import untrusted
from psframe.errors import UserError, reason
from psframe.record.folder import Folder

NAME = "journal.jsonl"
MAX_BYTES = 256 << 20
KEPT = ("train", "trial")  # requests whose refusals are kept


class Line(msgspec.Struct):
    """A line of a journal behind its first one: a request, its reply, and the seconds of the search until then."""

    request: list[Any]
    reply: dict[str, Any]
    s: float


class Journal:
    """Journal in a folder, which is made.

    Parameters
    ----------
    out : Path
        A new folder, or that of a search for the same.
    asked : dict
        The command's request, plain.

    Raises
    ------
    UserError
        Another search's folder, one in use, or one that cannot be written.
    """

    def __init__(self, out: Path, asked: dict[str, Any]):
        try:
            lines = self._opened(out)
        except BlockingIOError:
            raise UserError(f"a folder takes one search at a time, got {str(out)!r}, in which one runs; wait") from None
        except OSError as error:
            raise no_folder(out, error) from None
        if lines and lines[0] != asked:
            raise UserError(f"--out must be new, or of the same search, got {str(out)!r}, of another; give another")
        self.lines, self.before_s, self.began = lines[1:], 0.0, monotonic()
        if not lines:
            self._write(asked)

    def _opened(self, out: Path) -> list[Any]:
        """Open and lock the file; return its complete lines."""
        names = sorted(path.name for path in out.iterdir()) if out.exists() else []
        if names and NAME not in names:
            raise UserError(f"--out must be a new or empty folder, got {str(out)!r} with {names[0]}; give another")
        out.mkdir(parents=True, exist_ok=True)
        with Folder.chosen(out) as folder:
            self.file: TextIO = folder.open(NAME, "a+")
        fcntl.lockf(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self.file.seek(0)
        try:
            text = self.file.read(MAX_BYTES)
            whole = text[: text.rfind("\n") + 1].split("\n")[:-1]
            self.sizes = [len(line.encode()) + 1 for line in whole]
            lines = [untrusted.of_json(line) for line in whole]
            for line in lines[1:]:
                msgspec.convert(line, Line)
        except ValueError as error:  # msgspec's, too
            raise UserError(
                f"a search must have a sound journal, got another in {str(out)!r} ({reason(error)}); give another --out"
            ) from None
        self.file.truncate(sum(self.sizes))
        return lines

    @property
    def elapsed_s(self) -> float:
        """Seconds of the search, before it broke off and since."""
        return self.before_s + (0.0 if self.lines else monotonic() - self.began)

    def reply(self, request: list[Any], do: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Return the reply to a request: from the journal, or of ``do``; a UserError of ``do`` is raised again."""
        if self.lines:
            line = self.lines.pop(0)
            if line["request"] == request:
                self.before_s, self.began = line["s"], monotonic()
                return _opened(line["reply"])
            self.file.truncate(sum(self.sizes[: -1 - len(self.lines)]))  # from here on it is measured anew
            self.lines.clear()
        try:
            reply = do()
        except UserError as error:
            if request[0] not in KEPT:
                raise  # what ends a search may be mended
            reply = {"refused": str(error)}
        self._write({"request": request, "reply": reply, "s": round(self.elapsed_s, 3)})
        return _opened(reply)

    def _write(self, line: dict[str, Any]) -> None:
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()

    def close(self) -> None:
        """Close the file, which ends the lock."""
        with suppress(OSError):  # a full disk, told before
            self.file.close()


def _opened(reply: dict[str, Any]) -> dict[str, Any]:
    if "refused" in reply:
        raise UserError(reply["refused"])
    return reply
