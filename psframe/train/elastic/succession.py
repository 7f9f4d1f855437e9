"""Succession of rank 0 (:class:`Succession`): another rank leads the job when it has died."""

import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from psframe.cluster.pool import Pool
from psframe.record import checkpoint, metrics, scaling
from psframe.record.run_dir import taken_over
from psframe.record.sealed import anywhere
from psframe.record.tensorboard import Board
from psframe.train.assembly import setup
from psframe.train.callbacks import configured
from psframe.train.callbacks.base import Control
from psframe.train.callbacks.best_checkpoint import BestCheckpoint
from psframe.train.callbacks.calls import Calls
from psframe.train.checkpointer import Checkpointer
from psframe.train.elastic.scaling import Scaling
from psframe.train.outputs import Outputs
from psframe.train.run import Run


@dataclass
class Succession:
    """Duties of rank 0, as every rank knows them.

    Attributes
    ----------
    folder : Path
        Of the run.
    data : int
        Checksum of the samples.
    begun : int
        Epochs done when the job began.
    quiet : bool
    is_open : bool
        False if another rank cannot have them: callbacks of a script live in rank 0's process.
    pool : Pool
    check : callable
        As in :class:`psframe.train.elastic.scaling.Scaling`.
    """

    folder: Path
    data: int
    begun: int
    quiet: bool
    is_open: bool
    pool: Pool
    check: Callable[[tuple[int, ...]], None]
    outputs: Outputs | None = None  # of this rank, if it has taken over

    def holds_state(self, run: Run) -> bool:
        """Return True if this rank has the state of a run, whose ranks may be anywhere, and may lead it on."""
        leads = self.pool.cluster.rank == 0
        if not (leads or self.is_open):
            return False
        if run.remainder:
            return run.remainder.saved is not None
        return leads or (run.sync.holds_state and not run.leaves)

    def take_over(self, run: Run) -> None:
        """Do rank 0's duties from here on, on the rank that is it now. All members must call.

        AgreedError on every rank, if the run's folder cannot be written there.
        """
        run.cluster.run_on_root(partial(self._take_over, run))

    def _take_over(self, run: Run) -> None:
        if run.outputs.run_dir:
            return
        if self.outputs is None:  # else another rank has died before this one was done
            self.outputs = self._made(run)
        run.outputs = self.outputs
        if self.pool.number in scaling.leaving(self.folder):  # the job ends where rank 0 is asked to leave
            run.cluster.halt.signal = signal.SIGTERM

    def _made(self, run: Run) -> Outputs:
        before, progress, n_steps = run.outputs, run.progress, run.sampler.steps_an_epoch
        opened = taken_over(self.folder, progress.epoch, self.begun)
        calls = Calls(configured.callbacks(run.config))
        run.outputs = outputs = setup.outputs(run, opened, before.trace, self.data, self.quiet, calls)
        outputs.usage, outputs.view.n_steps = before.usage, n_steps
        step = progress.step - sum(len(part.losses) for part in progress.parts)  # at which the epoch began
        if run.config.record.tensorboard:
            outputs.board = Board(self.folder, progress.epoch, step)
        progress.record = next(reversed(metrics.read(self.folder)), None)
        self.pool.leaves = lambda: False
        self.heed(run)
        begin(run, self.begun, n_steps)
        if outputs.checkpointer:
            outputs.checkpointer.writer.at = anywhere  # an injected crash happens once
            self._keep_best(run, outputs.checkpointer, step)
        return outputs

    def _keep_best(self, run: Run, checkpointer: Checkpointer, step: int) -> None:
        """Keep the checkpoint of the epoch before, if it is the best, and rank 0 has died before it had."""
        progress, calls = run.progress, run.outputs.calls
        if progress.begun_at or not progress.epoch:
            return  # the epoch did not begin in this job
        for callback in calls.callbacks:
            if not isinstance(callback, BestCheckpoint) or callback.best.epoch != progress.epoch:
                continue
            callback.step, path = step, checkpoint.path_of(self.folder / "checkpoints", progress.epoch, step)
            if path.is_file():
                calls.checkpoint(path)
            elif progress.step == step:
                checkpointer.take(run.model_state, run.rows(), progress.epoch, step, always=True)
                checkpointer.start()

    def heed(self, run: Run) -> None:
        """Heed requests to the job for other ranks, on rank 0."""
        if run.config.elastic.ranks:
            run.outputs.scaling = Scaling(self.folder, self.pool, self.check)


def begin(run: Run, begun: int, n_steps: int) -> dict[str, Any]:
    """Begin the callbacks on rank 0, of a run that was begun after ``begun`` epochs; return their requests."""
    outputs, progress = run.outputs, run.progress
    assert outputs.run_dir
    lr = run.updater.optimizer.lr
    control = Control(outputs.run_dir.path, run.config, n_steps, begun, progress.step, lr)
    requests = vars(outputs.calls.begin(control))
    control.epoch = progress.epoch
    return requests
