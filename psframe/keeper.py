"""When rank 0 writes checkpoints while ranks train."""

from collections.abc import Sequence
from time import monotonic

import numpy as np

from psframe.arena import Arena
from psframe.config import Checkpoint
from psframe.record import checkpoint
from psframe.record.run_dir import RunDir, durably


class Keeper:
    """Writes checkpoints inside an epoch, where the config asks for any.

    Attributes
    ----------
    asked : bool
        Whether the ranks were asked to pause.
    """

    def __init__(self, run_dir: RunDir, keys: Checkpoint):
        self.run_dir, self.keys = run_dir, keys
        self.asked, self.last_s = False, monotonic()

    def due(self) -> bool:
        """Whether the last checkpoint is ``checkpoint.every_seconds`` old."""
        return bool(self.keys.every_seconds) and monotonic() - self.last_s >= self.keys.every_seconds

    def save(self, arena: Arena, rows: Sequence[np.ndarray], epoch: int, step: int, cursor: int) -> None:
        """Write parameters and the rows of state (S,); ``cursor`` samples of the epoch after ``epoch`` are done."""
        self.last_s = monotonic()
        if not self.keys.every_epochs and not self.keys.every_seconds:
            return
        state = np.stack(rows) if len(rows) else np.empty((0, arena.layout.size), np.float32)
        saved = checkpoint.Saved(arena.params, state, epoch, step, arena.layout.describe(), cursor)
        written = durably(lambda path: checkpoint.write(path / "checkpoints", saved), self.run_dir)
        durably(lambda path: checkpoint.advance(written, self.keys.keep), self.run_dir)

    def close(self) -> None:
        """Wait until all that was saved is durable."""
