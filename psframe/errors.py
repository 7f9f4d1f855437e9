"""The one exception for what a user can mend."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in the config, the data or the files: one sentence with the rule, the value got and the fix.

    It is printed once, without a traceback, and every rank exits with status 2. Anything else that is raised
    is a defect and aborts the job with ``rank k`` and its traceback.
    """


def nearest(name: object, valid: Iterable[str]) -> str:
    """Return ``"; did you mean X?"`` where a valid name resembles ``name``, and the list of valid names."""
    names = sorted(valid)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}valid: {', '.join(names)}" if names else "there are none"
