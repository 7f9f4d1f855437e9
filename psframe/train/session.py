"""Training of a plan on the ranks of a job (:func:`train`), from the construction of its parts to its end."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from psframe.cluster.cluster import AgreedError, Cluster
from psframe.cluster.command import training_begins
from psframe.cluster.flight.recorder import RECORDER
from psframe.cluster.pool import Pool
from psframe.cluster.signals import Signals
from psframe.record import log, onward, scaling, stopped
from psframe.record.flight import END, in_phase
from psframe.record.library_warnings import LIBRARIES
from psframe.record.run_dir import durably
from psframe.train import loop, recovery
from psframe.train.assembly import assemble
from psframe.train.callbacks import configured
from psframe.train.callbacks.calls import Calls
from psframe.train.elastic.resize import Dismissed, dismiss
from psframe.train.elastic.succession import Succession, begin
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
    run = ready(cluster, plan, quiet, callbacks)
    by_stop: Stopped | None = None
    succession = successive(run, plan, pool, quiet, not callbacks)
    _tell(run, succession.folder)
    try:
        if run.progress.stop:
            run.cluster.run_on_root(partial(finish, run))
        else:
            with Signals(None, *_spoken(run), lambda: pool.leaves()) as signals:
                run, by_stop = recovery.trained(run, plan, partial(_train, signals=signals), pool, succession)
    except Dismissed as told:
        if told.error:
            raise AgreedError(told.error) from None
        by_stop = Stopped(told.number, told.cause) if told.cause else None
    except AgreedError as error:
        dismiss(pool, error=str(error))
        raise
    else:
        dismiss(pool, *(by_stop.number, str(by_stop)) if by_stop else ())
    run.parted = pool.has_spares or pool.survives
    if run.cluster is not pool.cluster:  # all ranks of the job end together
        run.cluster.close()
        run.cluster = pool.cluster
    return run, by_stop


def ready(
    cluster: Cluster,
    plan: Plan,
    quiet: bool,
    callbacks: Sequence[Any] = (),
    built: Callable[[Run], None] = lambda run: None,
) -> Run:
    """Return a plan's run, ready to train, whose callbacks have begun. All ranks must call; see :func:`train`.

    ``built`` is given each rank's run before it computes.
    """
    cluster.run_on_root(lambda: judged.check_first(plan, cluster.sizes))
    calls = Calls([*callbacks, *configured.callbacks(plan.config)] if cluster.rank == 0 else ())
    run = assemble.run(cluster, plan, quiet, calls, built)
    LIBRARIES.tell(cluster.gather(LIBRARIES.take()) or [])
    training_begins()
    apply_requests(run, cluster.run_on_root(lambda: begin(run, run.progress.epoch, run.sampler.n_steps)))
    return run


def successive(run: Run, plan: Plan, pool: Pool, quiet: bool, is_open: bool) -> Succession:
    """Let all ranks know the duties of rank 0, and ask that they may leave, the others. All ranks must call.

    ``is_open``: another rank can have them.
    """
    outputs = run.outputs
    duties: list[Any] = []
    if outputs.run_dir and outputs.checkpointer:  # on rank 0
        opened, data = outputs.run_dir, outputs.checkpointer.data
        duties = [str(opened.path.absolute()), data, opened.begun, outputs.usage.before_s, is_open]
    path, data, begun, sampled_s, is_open = run.cluster.bcast(duties)
    folder, outputs.usage.zero = Path(path), perf_counter() - sampled_s

    def leaves() -> bool:
        with suppress(OSError):  # the folder may lie on a disk of rank 0's host
            scaling.leave(folder, pool.number)
            return True
        return False

    pool.shrinks = not run.sync.progress  # Open MPI's one-sided windows do not outlive a rank
    succession = Succession(folder, data, begun, quiet, is_open, pool, partial(judged.check_ranks, plan))
    if outputs.run_dir:
        succession.heed(run)
    elif plan.config.elastic.ranks:
        pool.leaves = leaves
    return succession


def _tell(run: Run, folder: Path) -> None:
    """Let the log be written to the run's folder, and what an incident has to tell of the run be known."""
    RECORDER.run = str(folder)
    log.write_to(folder, run.cluster.node)
    if run.cluster.link.leads:
        layers = [f"{index} {layer.kind}" for index, layer in run.network.active]
        RECORDER.tell(run=str(folder), layers=layers, **run.labels)


def _train(run: Run, signals: Signals) -> None:
    signals.speaks, signals.where = _spoken(run)  # rank 0 may be another one now
    signals.heed(run.cluster.halt)
    try:
        loop.train(run)
    except Stopped:
        _ended(run, signals)
        raise
    finally:
        signals.heed(None)
    _ended(run, signals)


def _ended(run: Run, signals: Signals) -> None:
    signals.end()  # callbacks may take their time
    run.cluster.run_on_root_in_time(partial(finish, run))


def _spoken(run: Run) -> tuple[bool, str]:
    """Return True on the rank that reports a signal, and what it adds."""
    opened, keys = run.outputs.run_dir, run.config.checkpoint
    if opened is None:
        return False, ""
    return True, onward.of_running(opened.path, bool(keys.every_epochs or keys.every_seconds))


@in_phase(END)
def finish(run: Run) -> None:
    """End the callbacks on rank 0, and mark a run that they have stopped."""
    outputs, progress = run.outputs, run.progress
    assert outputs.run_dir
    outputs.calls.end()
    if run.config.elastic.ranks:
        durably(scaling.clear, outputs.run_dir)
    if progress.stop:
        durably(lambda path: stopped.mark(path, progress.stop, progress.epoch, progress.step), outputs.run_dir)
