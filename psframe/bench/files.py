"""Files of measurements' reports (:func:`write`)."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from psframe.errors import UserError, reason
from psframe.record.folder import chosen_file, chosen_output, is_stream


def claim(path: str | None) -> None:
    """Raise UserError, before anything is measured, if :func:`write` could not write; existing content stays."""
    if path not in (None, "-") and not is_stream(str(path)):  # a stream's reader would take the close for its end
        with _told(str(path)), chosen_file(str(path), "a"):
            pass


def write(path: str | None, report: Any) -> None:
    """Write a report as JSON, if a path is given, or to stdout for ``-``; raise UserError on failure."""
    if path == "-":
        print(json.dumps(report), flush=True)
    elif path:
        with _told(path), chosen_output(path) as file:
            file.write(json.dumps(report, indent=1) + "\n")


@contextmanager
def _told(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"--json must name a file to write, got {path!r} ({reason(error)}); give another") from None
