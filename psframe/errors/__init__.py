"""Errors that a user can fix (:class:`UserError`), and the wording of messages."""

import difflib
import re
import sys
import traceback
from collections.abc import Iterable
from pathlib import PurePath

from psframe.errors import limits

MAX_NAMES = 20
MAX_SAID = 2000  # characters of a sentence, which may quote a file of any length


class UserError(Exception):
    """Mistake in the config, the data or the files: one sentence with the rule, the value got and the fix.

    It is printed once, without a traceback, and every rank exits with status 2. Any other exception is a defect and
    aborts the job with ``rank k`` and its traceback. Unprintable characters are shown as escapes.

    Parameters
    ----------
    said : object
        The sentence.
    table : str
        Lines shown below it without escaping; from trusted content only.
    """

    def __init__(self, said: object, table: str = ""):
        super().__init__(said)
        self.table = table

    def __str__(self) -> str:
        text, half = super().__str__(), MAX_SAID // 2
        cut = text if len(text) <= MAX_SAID else f"{text[:half]} ... {text[-half:]}"
        plain = cut if cut.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)
        return f"{plain}\n{self.table}" if self.table else plain


def nearest(name: object, valid: Iterable[str]) -> str:
    """Return the list of valid names, after ``"did you mean X?"`` if one resembles ``name``."""
    names = sorted(map(str, valid))
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.55)
    hint = f"did you mean {close[0]!r}? " if close else ""
    shown = [*names[:MAX_NAMES], "..."] if len(names) > MAX_NAMES else names
    return f"{hint}valid: {', '.join(shown)}" if names else "there are none"


def reason(error: BaseException) -> str:
    """Return a short reason for an error on a file; HDF5's own messages have several lines and hold addresses."""
    text = " ".join(str(error).split())
    inner = re.search(r"error message = '([^']*)'", text)
    return getattr(error, "strerror", None) or (inner[1] if inner else text)


def raised(error: BaseException, build: str) -> str:
    """Return a short description of an error in a user's code, with the last line of a user's file in the traceback.

    ``build`` is ``my_module:attr``; a user's file is one in the folder of that module.
    """
    file = getattr(sys.modules.get(build.partition(":")[0]), "__file__", None)
    folder = PurePath(file).parent if file else None
    frames = [f for f in traceback.extract_tb(error.__traceback__) if folder and PurePath(f.filename).parent == folder]
    where = f" in {PurePath(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}: {reason(error)[:300]}"


def sentence(error: BaseException) -> str:
    """Return the message for an error that a user can fix, "" for a defect.

    Fixable: a UserError, a process limit that was reached, or a lack of memory.
    """
    if isinstance(error, UserError):
        return str(error)
    if message := limits.met(error):
        return message
    if not isinstance(error, MemoryError):
        return ""
    why = reason(error) or "none is left"
    return f"what a config asks for must fit into memory, got too little ({why}); give smaller sizes"
