"""Cache of results of tuning in the user's folder: :func:`keep` one, :func:`find` it again."""

import errno
import os
from pathlib import Path

import msgspec

from psframe.config import tuned, untrusted
from psframe.config.tuned import Tuned
from psframe.record import sealed

MAX_BYTES = 1 << 20
VARIABLE = "XDG_CACHE_HOME"  # of the XDG Base Directory Specification


def folder() -> Path:
    """Return the cache's folder, which may not exist; OSError if the user has none."""
    cache = os.environ.get(VARIABLE, "")
    if not os.path.isabs(cache):
        cache = os.path.expanduser("~/.cache")
    if not os.path.isabs(cache):
        raise OSError(errno.ENOENT, "this user has no home", "~")
    return Path(cache) / "psframe" / tuned.FOLDER


def keep(config_key: str, found: Tuned) -> None:
    """Keep a result, in place of an earlier one for the same. Raises OSError."""
    folder().mkdir(parents=True, exist_ok=True)
    sealed.put(folder().resolve() / found.name(config_key), msgspec.json.encode(found).decode() + "\n")


def find(config_key: str, like: Tuned) -> Tuned | None:
    """Return the result for a config on the machine, ranks and batch of ``like``; None if there is none to be read."""
    try:
        return msgspec.json.decode(untrusted.content(folder() / like.name(config_key), MAX_BYTES), type=Tuned)
    except (OSError, msgspec.DecodeError):  # a damaged one is measured again
        return None
