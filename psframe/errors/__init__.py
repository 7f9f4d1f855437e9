"""The one exception for what a user can mend."""

import difflib
import re
import sys
import traceback
from collections.abc import Iterable
from pathlib import PurePath

from psframe.errors import limits

MOST_NAMES = 20
MOST_SAID = 2000  # characters of a sentence; what it shows may come from a file of any length


class UserError(Exception):
    """A mistake in the config, the data or the files: one sentence with the rule, the value got and the fix.

    It is printed once, without a traceback, and every rank exits with status 2. Anything else that is raised
    is a defect and aborts the job with ``rank k`` and its traceback. What a terminal would obey is shown as escapes.

    Parameters
    ----------
    said : object
        The sentence.
    table : str
        Lines of our own making to show below it, as they are.
    """

    def __init__(self, said: object, table: str = ""):
        super().__init__(said)
        self.table = table

    def __str__(self) -> str:
        said, half = super().__str__(), MOST_SAID // 2
        cut = said if len(said) <= MOST_SAID else f"{said[:half]} ... {said[-half:]}"
        plain = cut if cut.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)
        return f"{plain}\n{self.table}" if self.table else plain


def nearest(name: object, valid: Iterable[str]) -> str:
    """Return ``"; did you mean X?"`` where a valid name resembles ``name``, and the list of valid names."""
    names = sorted(map(str, valid))
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    shown = [*names[:MOST_NAMES], "..."] if len(names) > MOST_NAMES else names
    return f"{hint}valid: {', '.join(shown)}" if names else "there are none"


def reason(error: BaseException) -> str:
    """Return in a few words why a file could not be used; what HDF5 says takes lines and holds addresses."""
    text = " ".join(str(error).split())
    inner = re.search(r"error message = '([^']*)'", text)
    return getattr(error, "strerror", None) or (inner[1] if inner else text)


def raised(error: BaseException, build: str) -> str:
    """Return what a user's code raised, in a few words, with the last line of a file of the user's on the way.

    ``build`` is ``my_module:attr``; a file counts as the user's where it lies in the folder of that module.
    """
    file = getattr(sys.modules.get(build.partition(":")[0]), "__file__", None)
    folder = PurePath(file).parent if file else None
    frames = [f for f in traceback.extract_tb(error.__traceback__) if folder and PurePath(f.filename).parent == folder]
    where = f" in {PurePath(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{where}: {reason(error)[:300]}"


def sentence(error: BaseException) -> str:
    """Return what to say of what a user can mend, "" of a defect.

    That is a mistake, a limit of this process that was met, or sizes that are more than any memory.
    """
    if isinstance(error, UserError):
        return str(error)
    if told := limits.met(error):
        return told
    if not isinstance(error, MemoryError):
        return ""
    why = reason(error) or "none is left"
    return f"what a config asks for must fit into memory, got too little ({why}); give smaller sizes"
