"""Training of a plan on the ranks of a job (:func:`train`), from the construction of its parts to its end."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from mpi4py import MPI

from psframe.cluster.cluster import AgreedError, Cluster
from psframe.cluster.command import training_begins
from psframe.cluster.pool import Pool
from psframe.cluster.signals import Signals
from psframe.record import onward, scaling, stopped
from psframe.record.run_dir import durably
from psframe.train import loop, recovery
from psframe.train.build import assemble
from psframe.train.callbacks import configured
from psframe.train.callbacks.base import Control
from psframe.train.callbacks.calls import Calls
from psframe.train.elastic.resize import Dismissed, dismiss
from psframe.train.elastic.scaling import Scaling
from psframe.train.epoch import Stopped, apply_requests
from psframe.train.plan import judged
from psframe.train.plan.plan import Plan
from psframe.train.run import Run


def train(cluster: Cluster, plan: Plan, quiet: bool, callbacks: Sequence[Any] = ()) -> tuple[Run, Stopped | None]:
    """Train a plan; return the run, and what has stopped it inside an epoch, if anything. All ranks must call.

    Parameters
    ----------
    callbacks : sequence
        On rank 0, those that are called before the config's (:class:`psframe.train.callbacks.base.Callback`).

    Raises
    ------
    AgreedError
        On every rank, if the run is impossible, or a callback has raised.
    """
    pool = Pool(cluster, survives=plan.config.fault.on_worker_loss == "continue")
    cluster.run_on_root(lambda: judged.check_first(plan, cluster.sizes))
    calls = Calls([*callbacks, *configured.callbacks(plan.config)] if cluster.rank == 0 else ())
    run = assemble.run(cluster, plan, quiet, calls)
    training_begins()
    apply_requests(run, cluster.run_on_root(partial(_begin, run)))
    by_stop: Stopped | None = None
    if plan.config.elastic.ranks:
        _scale(run, plan, pool)
    try:
        if not run.progress.stop:
            with _signals(run, pool) as signals:
                run, by_stop = recovery.trained(run, plan, partial(_train, signals=signals), pool)
        run.cluster.run_on_root_in_time(partial(_end, run))
    except Dismissed as told:
        if told.error:
            raise AgreedError(told.error) from None
        by_stop = Stopped(told.number, told.cause) if told.cause else None
    except AgreedError as error:
        dismiss(pool, error=str(error))
        raise
    else:
        dismiss(pool, *(by_stop.number, str(by_stop)) if by_stop else ())
    run.parted = pool.has_spares
    if run.cluster is not pool.cluster:  # all ranks of the job end together
        run.cluster.close()
        run.cluster = pool.cluster
    return run, by_stop


def _scale(run: Run, plan: Plan, pool: Pool) -> None:
    """Let rank 0 heed requests for other ranks, and the others ask that they may leave. All ranks must call."""
    opened = run.outputs.run_dir
    if opened:
        run.outputs.scaling = Scaling(opened.path, pool, partial(judged.check_ranks, plan))
    folder = Path(run.cluster.bcast(str(opened.path.absolute()) if opened else ""))

    def leaves() -> bool:
        with suppress(OSError):  # the folder may lie on a disk of rank 0's host
            scaling.leave(folder, MPI.COMM_WORLD.rank)
            return True
        return False

    if run.cluster.rank:
        pool.leaves = leaves


def _signals(run: Run, pool: Pool) -> Signals:
    keys, where = run.config.checkpoint, ""
    if run.outputs.run_dir:  # on rank 0
        where = onward.of_running(run.outputs.run_dir.path, bool(keys.every_epochs or keys.every_seconds))
    return Signals(None, speaks=run.cluster.rank == 0, where=where, leaves=pool.leaves)


def _train(run: Run, signals: Signals) -> None:
    signals.heed(run.cluster.halt)
    try:
        loop.train(run)
    finally:
        signals.heed(None)


def _begin(run: Run) -> dict[str, Any]:
    """Begin the callbacks on rank 0; return their requests."""
    outputs, progress = run.outputs, run.progress
    assert outputs.run_dir
    lr = run.updater.optimizer.lr
    n_steps = run.sampler.n_steps
    control = Control(outputs.run_dir.path, run.config, n_steps, progress.epoch, progress.step, lr)
    return vars(outputs.calls.begin(control))


def _end(run: Run) -> None:
    """End the callbacks on rank 0, and mark a run that they have stopped."""
    outputs, progress = run.outputs, run.progress
    assert outputs.run_dir
    outputs.calls.end()
    if run.config.elastic.ranks:
        durably(scaling.clear, outputs.run_dir)
    if progress.stop:
        durably(lambda path: stopped.mark(path, progress.stop, progress.epoch, progress.step), outputs.run_dir)
