"""Runs that are left of a list (:class:`Left`), and about how long they take."""

import sys
import time
from typing import Any

from psframe.record.view import in_terminal


class Left:
    """Number and estimated time of the runs left of ``n``: a bar in a terminal, words elsewhere."""

    def __init__(self, n: int):
        self.n, self.n_run, self.spent_s, self.began = n, 0, 0.0, time.monotonic()
        self.bar: Any = None
        if in_terminal():
            from tqdm import tqdm

            self.bar = tqdm(total=n, unit="run", leave=False, file=sys.stderr)

    def passed(self, before: bool) -> None:
        """Count a run that has ended: now, or ``before`` this command."""
        now = time.monotonic()
        self.n -= 1
        if not before:
            self.n_run, self.spent_s = self.n_run + 1, self.spent_s + now - self.began
        self.began = now
        if self.bar is not None:
            self.bar.update()

    def described(self) -> str:
        """Return the estimate; '' before the first run has ended."""
        if not self.n_run:
            return ""
        seconds = round(self.n * self.spent_s / self.n_run)
        return f"; about {seconds // 60} min {seconds % 60} s left" if seconds >= 60 else f"; about {seconds} s left"

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()
