"""Recovery in the running processes (:func:`trained`): without a rank that died, or from a checkpoint.

After a death, the survivors leave all waits, form a smaller job (User-Level Failure Mitigation: Bland et al. 2013), and
rebuild every part of the run from rank 0's state after the last complete step, or from that of the rank that leads in
its place. They share the rest of the epoch; the data stay in memory.
"""

from collections.abc import Callable
from functools import partial

from psframe.cluster import communicators
from psframe.cluster.cluster import AgreedError, Cluster
from psframe.cluster.pool import LOSSES, Pool, StateLost, is_loss
from psframe.record import metrics
from psframe.record.checkpoint import Saved
from psframe.record.clock import CLOCK
from psframe.record.log import LOG
from psframe.record.run_dir import durably
from psframe.train.assembly.again import rebuilt, released
from psframe.train.elastic.remainder import Remainder
from psframe.train.elastic.resize import KEEPERS, Dismissed, continued, heard, resized, wait
from psframe.train.elastic.succession import Succession
from psframe.train.epoch import Resized, Stopped
from psframe.train.faults.injection import Rollback
from psframe.train.plan.plan import Plan
from psframe.train.run import Run


def shrink_and_continue(run: Run, plan: Plan, lost: BaseException, pool: Pool, succession: Succession) -> Run:
    """Return the run as the surviving ranks continue it. All survivors must call, each with its exception.

    Spares take the places of lost members.

    Raises
    ------
    PeerLost, LeaderEnded, MPI.Exception
        ``lost``, if the run cannot continue; StateLost if nobody can lead in the place of rank 0.
    Dismissed
        On a spare, when the job ends; on every rank, if another one had heard of its end.
    """
    if not _can(run, plan, lost, pool):
        raise lost
    began, before = CLOCK.now(), pool.cluster
    while True:
        try:
            keepers = pool.survive(succession.holds_state(run))[:KEEPERS]
            if pool.ended:
                raise Dismissed(**pool.ended["ended"])
            remainder = run.remainder or Remainder(run, pool.cluster.rank in keepers)
            heard(pool, {"goes_on": True})
            remainder.agree_place(pool.cluster, keepers)
            gone = _gone(before, pool.cluster)
            cluster = pool.divide(pool.chosen(pool.wanted))
            if not cluster:  # a spare, which joins by a later change
                remainder.saved = None
                run.cluster = wait(pool)
                return continued(run, plan, remainder)
            run.cluster = cluster
            new_run = continued(run, plan, remainder, partial(_note, gone, began))
            succession.take_over(new_run)
            break
        except LOSSES as next_loss:
            if isinstance(next_loss, StateLost) or not is_loss(next_loss):
                raise
    if new_run.outputs.checkpointer:
        new_run.outputs.checkpointer.asked = False  # for a pause that was broken off
        new_run.outputs.scaling.again()
        _tell(new_run)
    return new_run


def _can(run: Run, plan: Plan, lost: BaseException, pool: Pool) -> bool:
    """Return True if the run can continue after ``lost``: the death of a rank, not a rank that is stuck."""
    if plan.config.fault.on_worker_loss != "continue" or not run.cluster.outlives or not plan.asked.effective.survives:
        return False
    if run.sync is None and run.remainder is None:
        return False  # the ranks were going back to a checkpoint
    return pool.shrinks and is_loss(lost)


def _gone(before: Cluster, after: Cluster) -> list[int]:
    """Return the ranks of ``before`` that are not in ``after``, by their numbers at the start of the job."""
    left = communicators.numbers(after.comm)
    numbers = enumerate(communicators.numbers(before.comm))
    return [before.rendezvous.name(rank) for rank, number in numbers if number not in left]


def roll_back(run: Run, plan: Plan, failed: Rollback) -> Run:
    """Return the run as it was at its last checkpoint, or at its beginning. All ranks must call.

    After a transient fault, the run ends with the same bits as one without the fault.

    Raises
    ------
    AgreedError
        On every rank, if the step that caused the last rollback fails again, or the rollback is impossible.
    """
    if failed.step == run.progress.failed_step:
        raise AgreedError(
            f"a step must not fail again after all went back, but did: {failed.reason}; "
            "lower optimizer.lr, or look at the data or the memory of that rank"
        )
    checkpoints: list[Saved | None] = []
    run.cluster.run_on_root(lambda: checkpoints.append(_last(run)))
    run.progress.parts.clear()
    run.progress.counted = None
    run.progress.concluded, run.progress.failed_step = False, failed.step
    held, saved = released(run), checkpoints[0] if checkpoints else None
    new_run = rebuilt(plan, run.cluster, run, held, saved)
    new_run.guard.flip.step = 0  # an injected flip happens once
    new_run.progress.went_back.append({"step": failed.step, "ranks": list(failed.ranks), "reason": failed.reason})
    if new_run.cluster.rank == 0:
        new_run.outputs.scaling.again()
        place = f"epoch {new_run.progress.epoch + 1}, {new_run.sampler.cursor:,} samples" if saved else "the beginning"
        LOG.warning(f"{failed.reason}; all go back to {place}")
    return new_run


def _last(run: Run) -> Saved | None:
    """Return the last checkpoint, and drop the records of later epochs. Rank 0 only."""
    checkpointer, run_dir = run.outputs.checkpointer, run.outputs.run_dir
    assert checkpointer
    assert run_dir
    saved = checkpointer.newest(run.network.arena.layout)
    epoch = saved.epoch if saved else 0
    if metrics.last_epoch(run_dir.path) > epoch:
        run.progress.record = None
        durably(lambda path: metrics.cut_back(path, epoch), run_dir)
    return saved


def _note(gone: list[int], began: float, run: Run) -> None:
    progress = run.progress
    place = {"step": progress.step, "samples_done": run.sampler.cursor}
    progress.lost = [*progress.lost, {"ranks": gone, **place, "pause_s": CLOCK.now() - began}]


def _tell(run: Run) -> None:
    progress, loss = run.progress, run.progress.lost[-1]
    gone = loss["ranks"]
    who = f"rank {gone[0]} has" if len(gone) == 1 else f"ranks {', '.join(map(str, gone))} have"
    details = (
        f"in epoch {progress.epoch + 1}; {run.labels['n_workers']} worker(s) go on after {loss['samples_done']:,} "
        f"samples of it, {loss['pause_s']:.2f} s later"
    )
    if progress.epoch == run.config.train.epochs:
        details = "after the last epoch, and is missed in none"
    LOG.warning(f"{who} died {details}")


def trained(
    run: Run, plan: Plan, train: Callable[[Run], None], pool: Pool, succession: Succession
) -> tuple[Run, Stopped | None]:
    """Train, recovering from faults while a worker survives, and rank 0 or one that can lead. All ranks must call.

    Return the last run, and what has stopped it inside an epoch, if anything.

    Raises Dismissed on a rank that the job does without at its end.
    """
    n_at_first = plan.config.elastic.ranks
    change = {"members": list(pool.chosen(n_at_first)), "drained": [], "first": True} if n_at_first else None
    while True:
        try:
            if change:
                run = resized(run, plan, pool, change)
            change = None
            train(run)
            return run, None
        except Stopped as by_stop:
            return run, by_stop
        except Resized as asked:
            change = asked.change
        except Rollback as failed:
            run = roll_back(run, plan, failed)
        except LOSSES as lost:
            run, change = shrink_and_continue(run, plan, lost, pool, succession), None
