"""Checkpoint schedule of rank 0 (:class:`Checkpointer`): after epochs, and by time while ranks train."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path
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


class ModelState(Protocol):
    """Holder of a full network's parameters, float32 (layout.size,): an arena, or a stand-in for several."""

    @property
    def params(self) -> np.ndarray: ...

    @property
    def layout(self) -> Layout: ...

    @property
    def stays(self) -> bool:
        """True if the memory stays unchanged until :meth:`Checkpointer.rest`, so that no copy is needed."""


class Checkpointer:
    """Saver of checkpoints, as configured; a writer thread writes them while training continues.

    A failed write raises UserError from the next call of any method but :meth:`due`; :attr:`failed` reports it.

    Parameters
    ----------
    run_dir : RunDir
    keys : Checkpoint
    at : callable, optional
        Called with each of ``checkpoint.CRASH_POINTS`` as the writer reaches it.
    data : int
        Checksum of the samples, stored in every checkpoint.
    on_durable : callable, optional
        Called with the path of each checkpoint that is durable, by this thread, before the next one is begun.
    average : int
        Number of the row of state that is an average of the parameters, as in ``checkpoint.Saved``.

    Attributes
    ----------
    asked : bool
        True if the ranks were asked to pause.
    """

    def __init__(
        self,
        run_dir: RunDir,
        keys: Checkpoint,
        at: At = anywhere,
        data: int = 0,
        on_durable: Callable[[Path], None] = lambda path: None,
        average: int = 0,
    ):
        self.keys, self.writer, self.data, self.on_durable = keys, Writer(run_dir, keys.keep, at), data, on_durable
        self.average = average
        self.asked, self.last_s = False, monotonic()

    @property
    def failed(self) -> bool:
        """True if a write failed: the ranks then pause, so that the error reaches all."""
        return self.writer.failed

    def due(self) -> bool:
        """Return True if the last checkpoint is ``checkpoint.every_seconds`` old and no write is in progress."""
        seconds = self.keys.every_seconds
        return bool(seconds) and monotonic() - self.last_s >= seconds and not self.writer.busy

    def save(
        self,
        model_state: ModelState,
        rows: Sequence[np.ndarray],
        epoch: int,
        step: int,
        cursor: int,
        always: bool = False,
    ) -> None:
        """Write parameters (S,) and rows of state (S,), after ``epoch`` epochs and ``cursor`` samples of the next one.

        Non-finite parameters are not written: they would displace valid checkpoints. ``always`` as in :meth:`take`.
        """
        if isfinite(model_state.params.sum(dtype=np.float64)):
            self.take(model_state, rows, epoch, step, cursor, always)
            self.start()
        else:
            self.writer.check()

    def take(
        self,
        model_state: ModelState,
        rows: Sequence[np.ndarray],
        epoch: int,
        step: int,
        cursor: int = 0,
        always: bool = False,
    ) -> None:
        """Copy the state that :meth:`start` will write; ``always``: also where the config keeps no checkpoints."""
        self.last_s = monotonic()
        self.rest()
        self.deliver()
        if always or self.keys.every_epochs or self.keys.every_seconds:
            layout = model_state.layout.describe()
            saved = Saved(model_state.params, rows, epoch, step, layout, cursor, self.data, self.average)
            self.writer.take(saved, copies=not model_state.stays)

    def start(self) -> None:
        """Start writing the state that :meth:`take` copied."""
        self.writer.start()

    def deliver(self) -> None:
        """Call ``on_durable`` with each checkpoint that has become durable since the last call."""
        while self.writer.written:
            self.on_durable(self.writer.written.pop(0))

    def rest(self) -> None:
        """Wait until no write is in progress."""
        self.writer.rest()

    def newest(self, layout: Layout) -> Saved | None:
        """Wait for writes under way, and return the last durable checkpoint; None if absent."""
        self.asked = False
        self.writer.wait()
        return newest(self.writer.run_dir.path / "checkpoints", layout)[0]

    def close(self) -> None:
        """Wait until every saved checkpoint is durable."""
        self.writer.close()
        self.deliver()

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Close on a UserError of the context's body, whose message then covers both errors."""
        try:
            yield
        except UserError as error:
            try:
                self.close()
            except UserError as close_error:
                raise UserError(f"{error}; besides, {close_error}") from None
            raise
