"""Counts of an epoch by ranks before a change (:class:`Counted`)."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Counted:
    """Counts of an epoch, summed over ranks that no longer train, or not as they did: fields of a rank's ``Report``."""

    moved: np.ndarray
    counts: np.ndarray
    guarded: dict[str, Any]
    first_nonfinite_step: int
    page_moves: tuple[int, int] | None = None

    def add(self, other: "Counted | Any") -> None:
        """Add the counts of other ranks."""
        self.moved, self.counts = self.moved + other.moved, self.counts + other.counts
        known = [counts for counts in (self.page_moves, other.page_moves) if counts]
        self.page_moves = (sum(n for n, _ in known), sum(n for _, n in known)) if known else None
        late = self.guarded["late"]
        for rank, seconds in other.guarded["late"].items():
            late[rank] = late.get(rank, 0.0) + seconds
        steps = [step for step in (self.first_nonfinite_step, other.first_nonfinite_step) if step]
        self.first_nonfinite_step = min(steps, default=0)

    def note(self, other: "Counted | Any") -> None:
        """Add what rank 0 has counted since, with the skipped and repaired steps, which all ranks count alike."""
        for key in ("skipped", "repaired"):
            self.guarded[key] += other.guarded[key]
        self.add(other)

    def add_to(self, report: Any) -> None:
        """Add these counts to rank 0's report."""
        self.note(report)
        report.moved, report.counts, report.guarded = self.moved, self.counts, self.guarded
        report.first_nonfinite_step, report.page_moves = self.first_nonfinite_step, self.page_moves
