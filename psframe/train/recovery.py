"""Recovery in the running processes (:func:`trained`): without a worker that died, or from a checkpoint.

After a death, the survivors leave all waits, form a smaller job (User-Level Failure Mitigation: Bland et al. 2013), and
rebuild every part of the run from rank 0's state after the last complete step. They share the rest of the epoch; the
data stay in memory.
"""

import sys
from collections.abc import Callable
from time import perf_counter

import numpy as np
from mpi4py import MPI

from psframe.cluster import communicators, startup
from psframe.cluster.cluster import AgreedError, Cluster, join
from psframe.cluster.gates import PeerLost
from psframe.cluster.node_channel import LeaderEnded
from psframe.cluster.pool import Pool
from psframe.record import metrics
from psframe.record.checkpoint import Saved
from psframe.record.run_dir import durably
from psframe.train.build.again import rebuilt, released
from psframe.train.elastic.resize import resized
from psframe.train.epoch import Resized, Stopped
from psframe.train.epoch_metrics import EpochTimings
from psframe.train.faults.injection import Rollback
from psframe.train.plan.plan import Plan
from psframe.train.run import Run

#: exceptions in a rank when another one is lost
LOSSES = (PeerLost, LeaderEnded, MPI.Exception)


def shrink_and_continue(run: Run, plan: Plan, lost: BaseException) -> Run:
    """Return the run as the surviving ranks continue it. All survivors must call, each with its exception.

    Raises
    ------
    PeerLost, LeaderEnded, MPI.Exception
        ``lost``, if the run cannot continue; PeerLost if rank 0 died.
    """
    if not _can(run, lost):
        raise lost
    began = perf_counter()
    world, survivors = run.cluster.world, Survivors(run)
    while True:
        _leave(run.cluster)
        try:
            world = communicators.keep(world.Shrink())
            survivors.agree_place(world)
            gone = survivors.gone(world)
            n_nodes, run.cluster = run.cluster.n_nodes, join(world)
            if run.cluster.n_nodes < n_nodes:
                communicators.abandon_node()
            new_run = rebuilt(plan, run.cluster, run, survivors.held, survivors.saved)
            break
        except LOSSES as next_loss:
            if not _is_loss(next_loss) or (isinstance(next_loss, PeerLost) and 0 in next_loss.ranks):
                raise
    new_run.progress.begun_at = run.progress.begun_at
    _tell(new_run, gone, perf_counter() - began)
    return new_run


def _leave(cluster: Cluster) -> None:
    """Release all ranks from their waits, in MPI and in shared memory."""
    communicators.revoke()
    cluster.rendezvous.gates.tell()
    cluster.close()


def _can(run: Run, lost: BaseException) -> bool:
    """Return True if the run can continue after ``lost``: the death of a rank, not a rank that is stuck."""
    if run.config.fault.on_worker_loss != "continue" or not startup.tolerant() or not run.sync.traits.survives:
        return False
    if run.sync.progress:
        return False  # Open MPI's one-sided windows do not outlive a rank
    return _is_loss(lost)


def _is_loss(lost: BaseException) -> bool:
    return lost.dead if isinstance(lost, PeerLost) else isinstance(lost, LeaderEnded) or communicators.is_loss(lost)


class Survivors:
    """Remainder of a run after a death: rank 0's state, the data in memory, the surviving ranks.

    Parameters
    ----------
    run : Run
        The run at the time of the loss.

    Attributes
    ----------
    saved : Saved or None
        State to continue from, on rank 0.
    held : LoadedData
    """

    def __init__(self, run: Run):
        self.run, self.team = run, run.cluster.comm.Get_group()
        self.saved: Saved | None = None
        n_steps = 0  # complete steps of the epoch's last part
        if run.cluster.rank == 0:
            self.saved, n_steps = self._salvaged()
        self.place = (0 if run.progress.concluded else len(run.progress.parts), n_steps)
        self.lockstep, self.n_losses = run.sync.traits.in_step, run.work.n_losses
        self.held = released(run)

    def _salvaged(self) -> tuple[Saved, int]:
        run = self.run
        progress = run.progress
        inside = bool(progress.parts) and not progress.parts[-1].is_agreed
        done = run.sampler.cursor if progress.parts and not progress.concluded else 0
        n_steps, step = len(progress.parts[-1].losses) if progress.parts else 0, progress.step
        if inside:
            done = run.sync.work.salvaged()
            n_steps = run.sampler.steps_to(done)
            step += n_steps
        snapshot = run.sync.state()
        state = np.array(snapshot.rows, np.float32).reshape(-1, len(snapshot.params))
        layout = run.network.arena.layout.describe()
        saved = Saved(snapshot.params.copy(), state, progress.epoch, step, layout, done)
        return saved, n_steps

    def agree_place(self, world: MPI.Comm) -> None:
        """Drop, on every rank, the steps that rank 0's state does not contain.

        All survivors must call. Raises PeerLost if rank 0 is not among them.
        """
        if not any(world.allgather(self.saved is not None)):
            raise PeerLost(
                "rank 0 has died, which keeps the parameters and writes the checkpoints; the others cannot go on "
                "without it",
                (0,),
                world.rank == 0,
            )
        self._forget(*world.bcast(self.place))  # a surviving rank 0 is rank 0 of ``world``, too

    def _forget(self, n_parts: int, n_steps: int) -> None:
        parts, now = self.run.progress.parts, perf_counter()
        del parts[n_parts:]
        while len(parts) < n_parts:  # a part that this rank had not begun
            parts.append(EpochTimings.of(n_steps, self.n_losses))
        self.run.progress.concluded = False
        if parts:
            parts[-1].cut(n_steps)
            if self.lockstep:
                parts[-1].cut_turns(n_steps, now)
            if not parts[-1].is_agreed:
                parts[-1].begun, parts[-1].ended, parts[-1].is_agreed = parts[-1].begun or now, now, True

    def gone(self, world: MPI.Comm) -> list[int]:
        """Return the numbers of the lost ranks."""
        survivors = world.Get_group()
        new_ranks = MPI.Group.Translate_ranks(self.team, range(self.team.size), survivors)
        return [rank for rank, new_rank in enumerate(new_ranks) if new_rank == MPI.UNDEFINED]


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
    run.progress.concluded, run.progress.failed_step = False, failed.step
    held, saved = released(run), checkpoints[0] if checkpoints else None
    new_run = rebuilt(plan, run.cluster, run, held, saved)
    new_run.guard.flip.step = 0  # an injected flip happens once
    if new_run.cluster.rank == 0:
        new_run.progress.went_back.append({"step": failed.step, "ranks": list(failed.ranks), "reason": failed.reason})
        place = f"epoch {new_run.progress.epoch + 1}, {new_run.sampler.cursor:,} samples" if saved else "the beginning"
        print(f"psframe: warning: {failed.reason}; all go back to {place}", file=sys.stderr, flush=True)
    return new_run


def _last(run: Run) -> Saved | None:
    """Return the last checkpoint, and drop the records of later epochs. Rank 0 only."""
    checkpointer, run_dir = run.outputs.checkpointer, run.outputs.run_dir
    assert checkpointer
    assert run_dir
    saved = checkpointer.newest(run.network.arena.layout)
    epoch = saved.epoch if saved else 0
    if run.progress.record and run.progress.record["epoch"] > epoch:
        run.progress.record = None
        durably(lambda path: metrics.cut_back(path, epoch), run_dir)
    return saved


def _tell(run: Run, gone: list[int], pause_s: float) -> None:
    if run.cluster.rank == 0:
        who = f"rank {gone[0]} has" if len(gone) == 1 else f"ranks {', '.join(map(str, gone))} have"
        progress, done = run.progress, run.sampler.cursor
        progress.lost.append({"ranks": gone, "step": progress.step, "samples_done": done, "pause_s": pause_s})
        details = (
            f"in epoch {progress.epoch + 1}; {run.labels['n_workers']} worker(s) go on after {done:,} samples "
            f"of it, {pause_s:.2f} s later"
        )
        if progress.epoch == run.config.train.epochs:
            details = "after the last epoch, and is missed in none"
        print(f"psframe: {who} died {details}", file=sys.stderr, flush=True)


def trained(run: Run, plan: Plan, train: Callable[[Run], None], pool: Pool) -> tuple[Run, Stopped | None]:
    """Train, recovering from faults while rank 0 and a worker survive. All ranks must call.

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
            run = shrink_and_continue(run, plan, lost)
