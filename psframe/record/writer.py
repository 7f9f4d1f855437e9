"""Checkpoints that are written while training goes on, by a thread of rank 0."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from psframe.record import checkpoint
from psframe.record.run_dir import RunDir, durably
from psframe.record.sealed import At, anywhere


class Writer:
    """Writes one checkpoint after the other from a copy of its own, and lets ``latest`` name it when it is durable.

    The copy is made once and kept; it is as large as parameters and optimizer state, on rank 0 alone, and no placement
    or budget knows of it. What goes wrong on the thread is raised by whoever calls next.

    Parameters
    ----------
    run_dir : RunDir
    keep : int
        How many checkpoints stay.
    at : callable, optional
        Is told of ``checkpoint.CRASH_POINTS``.
    """

    def __init__(self, run_dir: RunDir, keep: int, at: At = anywhere):
        self.run_dir, self.keep, self.at = run_dir, keep, at
        self.params, self.state = np.empty(0, np.float32), np.empty((0, 0), np.float32)
        self.thread = ThreadPoolExecutor(1, "checkpoint")
        self.taken: checkpoint.Saved | None = None
        self.under_way: Future[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written, so that the next one would wait for it."""
        return self.under_way is not None and not self.under_way.done()

    @property
    def failed(self) -> bool:
        """Whether the last one could not be written, and nobody was told yet."""
        return self.under_way is not None and self.under_way.done() and self.under_way.exception() is not None

    def save(self, saved: checkpoint.Saved) -> None:
        """Copy what a checkpoint holds, and write it while the caller goes on; UserError as :meth:`wait`."""
        self.take(saved)
        self.start()

    def take(self, saved: checkpoint.Saved, copies: bool = True) -> None:
        """Copy what :meth:`start` then writes, once what is under way is durable; UserError as :meth:`wait`.

        Without ``copies`` it is written as it lies, and the caller calls :meth:`rest` before it changes.
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
        """Begin to write what was taken, if there is anything."""
        taken, self.taken = self.taken, None
        if taken:
            self.under_way = self.thread.submit(self._write, taken)

    def _write(self, saved: checkpoint.Saved) -> None:
        path = checkpoint.write(self.run_dir.path / "checkpoints", saved, self.at)
        checkpoint.advance(path, self.keep, self.at)

    def check(self) -> None:
        """UserError as :meth:`wait`, which this does not."""
        if not self.busy:
            self.wait()

    def rest(self) -> None:
        """Wait until nothing is being written; whoever calls next is told what went wrong."""
        if self.under_way:
            self.under_way.exception()

    def wait(self) -> None:
        """Wait until what is under way is durable; UserError where it could not be written, once."""
        under_way, self.under_way = self.under_way, None
        if under_way:
            durably(lambda path: under_way.result(), self.run_dir)

    def close(self) -> None:
        """Wait until the last checkpoint is durable, and end the thread; UserError as :meth:`wait`."""
        try:
            self.wait()
        finally:
            self.thread.shutdown()
