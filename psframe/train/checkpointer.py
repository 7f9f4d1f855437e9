"""When rank 0 writes checkpoints: after epochs, and while ranks train."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from time import monotonic
from typing import Protocol

import numpy as np

from psframe.config.schema import Checkpoint
from psframe.errors import UserError
from psframe.memory.arena import Layout
from psframe.record.checkpoint import Saved, newest
from psframe.record.run_dir import RunDir
from psframe.record.sealed import At, anywhere
from psframe.record.writer import Writer


class Learnt(Protocol):
    """What has the parameters of a whole network, (layout.size,): an arena, or what stands in for several."""

    @property
    def params(self) -> np.ndarray: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def stays(self) -> bool:
        """Whether it stays as it is until the keeper rests, so that nobody needs to copy it."""


class Keeper:
    """Saves checkpoints, where the config asks for any; they are written while training goes on.

    What could not be written is a UserError of whatever is called next, but for :meth:`due` and :attr:`failed`.

    Parameters
    ----------
    run_dir : RunDir
    keys : Checkpoint
    at : callable, optional
        Is told of ``checkpoint.CRASH_POINTS``.
    data : int
        Checksum of the samples, which every checkpoint says.

    Attributes
    ----------
    asked : bool
        Whether the ranks were asked to pause.
    """

    def __init__(self, run_dir: RunDir, keys: Checkpoint, at: At = anywhere, data: int = 0):
        self.keys, self.writer, self.data = keys, Writer(run_dir, keys.keep, at), data
        self.asked, self.last_s = False, monotonic()

    @property
    def failed(self) -> bool:
        """Whether one could not be written: the ranks then have to pause, so that all are told."""
        return self.writer.failed

    def due(self) -> bool:
        """Whether the last checkpoint is ``checkpoint.every_seconds`` old, and no longer being written."""
        seconds = self.keys.every_seconds
        return bool(seconds) and monotonic() - self.last_s >= seconds and not self.writer.busy

    def save(self, learnt: Learnt, rows: Sequence[np.ndarray], epoch: int, step: int, cursor: int) -> None:
        """Write parameters and the rows of state (S,); ``cursor`` samples of the epoch after ``epoch`` are done.

        Parameters that are not finite would push out those that are, and are not written.
        """
        if isfinite(learnt.params.sum(dtype=np.float64)):
            self.take(learnt, rows, epoch, step, cursor)
            self.start()
        else:
            self.writer.check()

    def take(self, learnt: Learnt, rows: Sequence[np.ndarray], epoch: int, step: int, cursor: int = 0) -> None:
        """Copy what :meth:`start` begins to write."""
        self.last_s = monotonic()
        if self.keys.every_epochs or self.keys.every_seconds:
            saved = Saved(learnt.params, rows, epoch, step, learnt.layout.describe(), cursor, self.data)
            self.writer.take(saved, copies=not learnt.stays)

    def start(self) -> None:
        """Begin to write what was taken."""
        self.writer.start()

    def rest(self) -> None:
        """Wait until nothing is being written."""
        self.writer.rest()

    def newest(self, layout: Layout) -> Saved | None:
        """Return the last checkpoint, when it is durable; None where there is none."""
        self.asked = False
        self.writer.wait()
        return newest(self.writer.run_dir.path / "checkpoints", layout)[0]

    def close(self) -> None:
        """Wait until all that was saved is durable."""
        self.writer.close()

    @contextmanager
    def closing(self, last: bool) -> Iterator[None]:
        """Close behind what is done under this, if it is the ``last`` or raises UserError: then one tells of both."""
        try:
            yield
        except UserError as error:
            try:
                self.close()
            except UserError as late:
                raise UserError(f"{error}; besides, {late}") from None
            raise
        if last:
            self.close()
