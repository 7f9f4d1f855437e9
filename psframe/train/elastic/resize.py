"""Change of the ranks that train (:func:`resized`), between two steps: some leave and wait, others join.

The old members drain what is in flight, and rank 0 keeps the state; then all ranks of the job meet, and the new
members build the run anew from that state. Those that are none wait in :meth:`Pool.hear`, with the data in memory and
the layers compiled.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np

from psframe.cluster.cluster import Cluster
from psframe.cluster.pool import Pool
from psframe.cluster.signals import NUMBERS
from psframe.record.checkpoint import Saved
from psframe.record.view import say
from psframe.train.build.again import rebuilt, released
from psframe.train.epoch_metrics import EpochTimings
from psframe.train.loop import together
from psframe.train.plan.plan import Plan
from psframe.train.run import Run


class Dismissed(Exception):
    """The job has ended while this rank was a spare.

    Attributes
    ----------
    number, cause : int and str
        As of ``Stopped``, if the members were stopped inside an epoch; else 0 and "".
    error : str
        That of the members; "" if there was none.
    """

    def __init__(self, number: int, cause: str, error: str):
        super().__init__(error or cause)
        self.number, self.cause, self.error = number, cause, error


def resized(run: Run, plan: Plan, pool: Pool, change: dict[str, Any]) -> Run:
    """Return the run as the new members continue it; on a rank that leaves, once it joins again. All members call.

    Parameters
    ----------
    change : dict
        ``members``, the numbers in the job of the new members, and ``drained`` nodes; the same on all members.
        ``first`` before anything is trained.

    Raises
    ------
    AgreedError
        On every new member, if they cannot train.
    Dismissed
        On a rank that is none of them, when the job ends.
    """
    began, leaves = perf_counter(), pool.cluster.rank not in change["members"]
    saved = _state(run) if run.cluster.rank == 0 else None
    _hand_over(run, leaves)
    run.sync.close()
    before, held = len(pool.members), released(run)
    if run.cluster is not pool.cluster:
        run.cluster.close()
    run.cluster = cluster = _joined(pool, change)
    begun_at = run.progress.begun_at
    new_run = rebuilt(plan, cluster, run, held, saved)
    new_run.progress.begun_at = begun_at
    _catch_up(new_run)
    if cluster.rank == 0:
        _tell(new_run, before, pool, began, "first" in change)
    return new_run


def _joined(pool: Pool, change: dict[str, Any]) -> Cluster:
    """Meet all ranks of the job; return the new members' cluster, on a rank that leaves once it is one again."""
    message = pool.hear(change)
    while True:
        pool.drained.update(message["drained"])
        if cluster := pool.divide(message["members"]):
            return cluster
        with _deaf():
            message = pool.hear()
        if "ended" in message:
            raise Dismissed(**message["ended"])


def dismiss(pool: Pool, number: int = 0, cause: str = "", error: str = "") -> None:
    """Let the spares end with the job: as it was stopped, or with an error. All members must call."""
    if pool.has_spares:
        pool.hear({"ended": {"number": number, "cause": cause, "error": error}})


@contextmanager
def _deaf() -> Iterator[None]:
    """Ignore signals that ask the job to leave: the members do, and dismiss this rank."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in NUMBERS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _state(run: Run) -> Saved:
    """Return a copy of the run's state at a pause. Rank 0 calls."""
    progress, holder = run.progress, run.model_state
    rows = [row.copy() for row in run.rows()]
    layout = holder.layout.describe()
    return Saved(holder.params.copy(), rows, progress.epoch, progress.step, layout, run.sampler.cursor)


def _hand_over(run: Run, leaves: bool) -> None:
    """Add to rank 0's measurements of the epoch those of ranks that leave. All members must call."""
    parts = run.progress.parts
    mine = [(part.losses, part.samples) for part in parts] if leaves else []
    for of_rank in run.cluster.gather_in_time(mine) or []:
        for part, (losses, samples) in zip(parts, of_rank, strict=False):
            part.losses += losses
            part.samples += samples
    if leaves:
        parts.clear()


def _catch_up(run: Run) -> None:
    """Give a rank that has joined the epoch's parts before, in which it computed nothing. All members must call."""
    parts = run.progress.parts
    of_first = run.cluster.bcast([(len(part.losses), part.begun, part.ended, part.times, part.met) for part in parts])
    offset_s = run.cluster.clock_offset_s
    if parts or not of_first:
        return
    for n_steps, begun, ended, times, met in of_first:
        part = EpochTimings.of(n_steps, run.work.n_losses)
        part.begun, part.ended, part.left, part.is_agreed = begun - offset_s, ended - offset_s, ended - offset_s, True
        if together(run):  # each exchange counts as met at rank 0's time
            arrivals = np.array(times).reshape(-1, 3)[:, 2] - offset_s
            part.times, part.met = [(at, at, at) for at in arrivals.tolist()], list(met)
        parts.append(part)


def _tell(run: Run, before: int, pool: Pool, began: float, is_first: bool) -> None:
    progress, parts, now = run.progress, run.progress.parts, len(pool.members)
    if is_first:
        if not run.outputs.view.quiet:
            n_spares = pool.cluster.n_ranks - now
            say(f"{now} of {pool.cluster.n_ranks} ranks train, {n_spares} wait (psframe scale RUN --to N)")
        return
    pause_s = perf_counter() - (parts[-1].left if parts else began)
    place = {"step": progress.step, "samples_done": run.sampler.cursor}
    progress.resized.append({"before": before, "now": now, **place, "pause_s": pause_s})
    run.outputs.scaling.done(before, progress.epoch + 1, progress.step, pause_s)
