"""What is said of many measurements, and where it is written."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from psframe.errors import UserError, reason


def spread(numbers: Sequence[float]) -> dict[str, float]:
    """Return median and quartiles."""
    low, middle, high = np.percentile(numbers, (25, 50, 75))
    return {"median": float(middle), "low": float(low), "high": float(high)}


def claim(path: str | None) -> None:
    """UserError where :func:`write` could not write, before anything is measured."""
    if path not in (None, "-"):
        try:
            with open(str(path), "a"):
                pass
        except OSError as error:
            raise UserError(f"--json must name a file to write, got {path!r} ({reason(error)}); give another") from None


def write(path: str | None, report: Any) -> None:
    """Write a report as JSON, if a path is given, or to stdout for ``-``; UserError where it cannot be."""
    if path == "-":
        print(json.dumps(report), flush=True)
    elif path:
        try:
            Path(path).write_text(json.dumps(report, indent=1) + "\n")
        except OSError as error:
            raise UserError(f"--json must name a file to write, got {path!r} ({reason(error)})") from None
