"""Requests to a running job for more or fewer ranks (:class:`Request`), and its answers: files in the run's folder.

Rank 0 looks for a request between two steps, so the command may run on any host that sees the folder.
"""

import json
import os
import re
import secrets
from pathlib import Path
from typing import Annotated, Any

import msgspec

from psframe.errors import UserError
from psframe.record.folder import Folder

ASKED, BEGUN, ANSWERED = "scale.json", "scaling.json", "scaled.json"  # one that is begun cannot be withdrawn
LEAVING = re.compile(r"leave-([0-9]{1,9})")  # a rank that asks to leave
MOST_BYTES = 1 << 16  # of each file

Rank = Annotated[int, msgspec.Meta(ge=1, le=1 << 30)]
Word = Annotated[str, msgspec.Meta(max_length=4096)]


class Request(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Request to a job.

    Attributes
    ----------
    id : str
        Drawn for this request; the answer repeats it.
    ranks : int or None
        Number of ranks that are to train; None: as many as now, less those of ``drain``.
    drain : list of str
        Hosts whose ranks are to leave, and not to come back.
    """

    id: Word
    ranks: Rank | None = None
    drain: list[Word] = []


class Answer(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Answer of a job: what it has done, or ``error``, why it has not.

    Attributes
    ----------
    before, now : int
        Ranks that train.
    epoch, step : int
        Epoch under way, from 1, and steps done in the run, at which they changed.
    pause_s : float
        Seconds between the last step of the old ranks and the first of the new ones.
    """

    id: Word
    before: int = 0
    now: int = 0
    epoch: int = 0
    step: int = 0
    pause_s: float = 0.0
    error: Word = ""


def ask(run: Path, ranks: int | None, drain: list[str]) -> Request:
    """Write a request into a run's folder, and return it; one that nobody has answered is replaced.

    OSError if that is impossible, UserError if the request is none.
    """
    try:
        asked = msgspec.convert({"id": secrets.token_hex(8), "ranks": ranks, "drain": drain}, Request)
    except msgspec.ValidationError as error:
        raise UserError(
            f"a job can be asked for ranks by number, and hosts by name, and this is neither: {error}"
        ) from None
    _put(run, ASKED, asked)
    return asked


def answer(run: Path, answered: Answer) -> None:
    """Write an answer. OSError if that is impossible."""
    _put(run, ANSWERED, answered)
    with Folder(run) as folder:
        folder.remove(BEGUN)


def asked(run: Path) -> Request | None:
    """Return the last request, or that which is begun; None if there is none, or it cannot be read."""
    return _get(run, ASKED, Request) or _get(run, BEGUN, Request)


def begin(run: Path, of: Request) -> bool:
    """Begin what a request asks for, also once more; return False if it was withdrawn."""
    try:
        if _get(run, ASKED, Request) == of:
            with Folder(run) as folder:
                folder.replace(ASKED, BEGUN)
    except FileNotFoundError:
        pass  # it was withdrawn meanwhile
    except OSError:
        return asked(run) == of  # nobody can write there, and so nobody withdraws it
    return _get(run, BEGUN, Request) == of


def withdraw(run: Path, of: Request) -> bool:
    """Remove a request that no job has begun; return False if it was not there. OSError if that is impossible."""
    with Folder(run) as folder:
        if _get(run, ASKED, Request) != of:
            return False
        try:
            folder.replace(ASKED, f"{ASKED}.part")  # of two who take it away, one does
        except FileNotFoundError:
            return False
        folder.remove(f"{ASKED}.part")
    return True


def answered(run: Path, of: Request) -> Answer | None:
    """Return the answer to a request; None if there is none yet."""
    found = _get(run, ANSWERED, Answer)
    return found if found is not None and found.id == of.id else None


def leave(run: Path, rank: int) -> None:
    """Ask that a rank may leave, by its number in the world. OSError if that is impossible."""
    with Folder(run) as folder:
        os.close(folder.make_fd(f"leave-{rank}"))


def leaving(run: Path) -> list[int]:
    """Return the ranks that have asked to leave since :func:`clear`."""
    try:
        with Folder(run) as folder:
            return sorted(int(match[1]) for name in folder.names() if (match := LEAVING.fullmatch(name)))
    except OSError:
        return []


def clear(run: Path) -> None:
    """Remove all requests, as they were to a job that has ended. OSError if that is impossible."""
    ranks = leaving(run)
    with Folder(run) as folder:
        for name in (ASKED, BEGUN, *(f"leave-{rank}" for rank in ranks)):
            folder.remove(name)


def _put(run: Path, name: str, content: msgspec.Struct) -> None:
    with Folder(run) as folder, folder.replaced(name) as file:
        file.write(json.dumps(msgspec.to_builtins(content)) + "\n")


def _get(run: Path, name: str, kind: Any) -> Any:
    try:
        with Folder(run) as folder, folder.open(name) as file:
            return msgspec.json.decode(file.read(MOST_BYTES), type=kind)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
