"""Asynchronous writing of checkpoints (:class:`Writer`), by a thread of rank 0 while training goes on."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from time import monotonic_ns

import numpy as np

from psframe.record import checkpoint
from psframe.record.flight import RING, STORE, WRITES, phase
from psframe.record.log import LOG
from psframe.record.run_dir import RunDir, durably
from psframe.record.sealed import At, anywhere


class Writer:
    """Writer of one checkpoint at a time, from its own copy; ``latest`` names a checkpoint once it is durable.

    The copy's buffers are allocated once and reused. They have the size of parameters and optimizer state, on rank 0
    only, outside of placements and memory budget. The next waiting call, or :meth:`check`, raises the thread's error.

    Parameters
    ----------
    run_dir : RunDir
    keep : int
        Number of checkpoints to keep.
    at : callable, optional
        Called with each of ``checkpoint.CRASH_POINTS``.

    Attributes
    ----------
    written : list of Path
        Durable checkpoints, oldest first; the owner empties it.
    """

    def __init__(self, run_dir: RunDir, keep: int, at: At = anywhere):
        self.run_dir, self.keep, self.at = run_dir, keep, at
        self.params, self.state = np.empty(0, np.float32), np.empty((0, 0), np.float32)
        self.thread = ThreadPoolExecutor(1, "checkpoint")
        self.taken: checkpoint.Saved | None = None
        self.under_way: Future[None] | None = None
        self.written: list[Path] = []

    @property
    def busy(self) -> bool:
        """True if a checkpoint is being written; the next one would wait for it."""
        return self.under_way is not None and not self.under_way.done()

    @property
    def failed(self) -> bool:
        """True if writing the last checkpoint failed, and the error is not raised yet."""
        return self.under_way is not None and self.under_way.done() and self.under_way.exception() is not None

    def save(self, saved: checkpoint.Saved) -> None:
        """Copy ``saved``, and write it in the background; UserError as :meth:`wait`."""
        self.take(saved)
        self.start()

    def take(self, saved: checkpoint.Saved, copies: bool = True) -> None:
        """Copy ``saved`` for :meth:`start`, after waiting for the write under way; UserError as :meth:`wait`.

        Without ``copies`` the arrays are written in place, and the caller must call :meth:`rest` before changing them.
        """
        self.wait()
        if not copies:
            self.taken = saved
            return
        if self.params.size != saved.params.size or len(self.state) != len(saved.state):
            self.params = np.empty(saved.params.size, np.float32)
            self.state = np.empty((len(saved.state), saved.params.size), np.float32)
        self.params[:] = saved.params
        for row, current in zip(self.state, saved.state, strict=True):
            row[:] = current
        self.taken = replace(saved, params=self.params, state=self.state)

    def start(self) -> None:
        """Start writing the checkpoint from :meth:`take`, if any."""
        taken, self.taken = self.taken, None
        if taken:
            self.under_way = self.thread.submit(self._write, taken)

    def _write(self, saved: checkpoint.Saved) -> None:
        RING.put(WRITES, monotonic_ns())
        try:
            path = checkpoint.write(self.run_dir.path / "checkpoints", saved, self.at)
            checkpoint.advance(path, self.keep, self.at)
        finally:
            RING.put(WRITES, 0)
        self.written.append(path)
        LOG.info("%s is durable", path.name, extra={"of": path})

    def check(self) -> None:
        """Raise UserError as :meth:`wait`, without waiting."""
        if not self.busy:
            self.wait()

    def rest(self) -> None:
        """Wait for the write under way, without raising its error."""
        if self.under_way:
            with phase(STORE):
                self.under_way.exception()

    def wait(self) -> None:
        """Wait until the checkpoint under way is durable; UserError, once, if writing failed."""
        under_way, self.under_way = self.under_way, None
        if under_way:
            with phase(STORE):
                durably(lambda path: under_way.result(), self.run_dir)

    def close(self) -> None:
        """Wait until the last checkpoint is durable, and end the thread; UserError as :meth:`wait`."""
        try:
            self.wait()
        finally:
            self.thread.shutdown()
            self.thread = ThreadPoolExecutor(1, "checkpoint")  # where the run goes on without a rank
